"""Bodies: the functions that TensorFlow traces for a branch, a loop or a nested ``tf.function``."""

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
    """Have this thread trace each body within a context ``around()``."""
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
