"""The groups of layers that ``checkpointed(layers=)`` recomputes call by call, as long as it does.

A group is active while its model trains, in that thread. On JAX and PyTorch a replay runs with the
groups that were active at the call.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

_STANDS_IN = "_keras_recompute_stands_in"
_groups: ContextVar[tuple[Any, ...]] = ContextVar("groups of layers to recompute", default=())


def is_active(group: Any) -> bool:
    """Whether calls of the layers of ``group`` are recomputed here."""
    return any(each is group for each in _groups.get())


@contextlib.contextmanager
def with_group(group: Any) -> Iterator[None]:
    """Recompute calls of the layers of ``group`` inside the context, in this thread."""
    with _with_groups((*_groups.get(), group)):
        yield


@contextlib.contextmanager
def without_group(group: Any) -> Iterator[None]:
    """Recompute no calls of the layers of ``group`` inside the context."""
    with _with_groups(tuple(each for each in _groups.get() if each is not group)):
        yield


def groups_now() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context in which the groups are active that are so now."""
    groups = _groups.get()
    return lambda: _with_groups(groups)


@contextlib.contextmanager
def _with_groups(groups: tuple[Any, ...]) -> Iterator[None]:
    token = _groups.set(groups)
    try:
        yield
    finally:
        _groups.reset(token)


def mark_stand_in(call: Any) -> None:
    """Mark ``call`` as a function that computes what the method of the layer's class does."""
    setattr(call, _STANDS_IN, True)


def is_stand_in(value: Any) -> bool:
    """Whether ``value`` is a function that was marked so."""
    return isinstance(value, types.FunctionType) and _STANDS_IN in vars(value)
