"""The IPUStrategy whose scope is entered.

The strategy sets it, and the pipeline stages read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_entered: list[Any] = []


@contextmanager
def enter_strategy(strategy: Any) -> Iterator[None]:
    """Make ``strategy`` the current one until the context ends."""
    _entered.append(strategy)
    try:
        yield
    finally:
        _entered.pop()


def current_strategy() -> Any:
    """Return the strategy whose scope is entered, or None."""
    return _entered[-1] if _entered else None
