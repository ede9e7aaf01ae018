"""Values attached to a graph, and freed with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def graph_state(graph: Any, name: str, make: Callable[[], Any] = dict) -> Any:
    """Return what is kept with ``graph`` under ``name``; ``make()``, kept from now on, where there is nothing yet."""
    if not hasattr(graph, name):
        setattr(graph, name, make())
    return getattr(graph, name)
