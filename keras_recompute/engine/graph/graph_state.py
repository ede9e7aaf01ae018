"""Values attached to a graph, and freed with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_lock = threading.Lock()


def kept_with(graph: Any, name: str, make: Callable[[], Any] = dict) -> Any:
    """Return what ``graph`` keeps under ``name``, or ``make()``, which it keeps from now on."""
    if not hasattr(graph, name):
        made = make()
        with _lock:
            # Another thread may have set it meanwhile.
            if not hasattr(graph, name):
                setattr(graph, name, made)
    return getattr(graph, name)
