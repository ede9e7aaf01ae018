"""Names of what runs on PyTorch, whose operations have none: passes and sections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_scopes: ContextVar[tuple[str, ...]] = ContextVar("scopes", default=())


@contextlib.contextmanager
def named_scope(name: str) -> Iterator[None]:
    """Return a context in which ``current_scopes`` ends in ``name``."""
    token = _scopes.set((*_scopes.get(), name))
    try:
        yield
    finally:
        _scopes.reset(token)


def current_scopes() -> tuple[str, ...]:
    """Return the names of the forward passes and replays that run, the innermost last.

    Operations of PyTorch have no names: who records them asks here.
    """
    return _scopes.get()
