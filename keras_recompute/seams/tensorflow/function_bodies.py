"""A hook around the tracing of function bodies: branches, loops and nested functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from tensorflow.python.framework import func_graph

_plain_trace = func_graph.func_graph_from_py_func
_around: ContextVar[Callable[[], Any] | None] = ContextVar("entered around bodies", default=None)


@contextlib.contextmanager
def trace_bodies_within(around: Callable[[], Any]) -> Iterator[None]:
    """Trace each body in this thread within a context ``around()``."""
    func_graph.func_graph_from_py_func = _trace_body
    token = _around.set(around)
    try:
        yield
    finally:
        _around.reset(token)


def _trace_body(*args: Any, **kwargs: Any) -> Any:
    around = _around.get()
    if around is None:
        return _plain_trace(*args, **kwargs)
    with around():
        return _plain_trace(*args, **kwargs)
