"""One traceback for all operations that a call from the user's code makes.

TensorFlow notes for every operation by which calls it was made, and writes all of them out once XLA compiles it: in a model
some forty frames, 7 KiB, for thousands of operations that differ in what TensorFlow, Keras and this package called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.util import tf_stack

from .compiler import under_xla
from .origin import source_among, source_of

Result = TypeVar("Result")
# TensorFlow's own, and not public: where a version has none, operations keep the tracebacks that they have.
_set_traceback: Any = getattr(pywrap_tf_session, "TF_SetOpStackTrace", None)


def sharing_tracebacks(build: Callable[..., Result]) -> Callable[..., Result]:
    """Return ``build``, after which operations that it made in a graph for XLA share the traceback of the call.

    Not those made by a line of the user's code further in, as in a layer of their own: that line is worth more.
    """

    @functools.wraps(build)
    def run(*args: Any, **kwargs: Any) -> Result:
        if _set_traceback is None or not under_xla():
            return build(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        result = build(*args, **kwargs)
        _share(graph.get_operations()[before:])
        return result

    return run


def _share(operations: list[tf.Operation]) -> None:
    shared = tf_stack.extract_stack()
    source = source_among(shared)
    for operation in operations:
        if operation.traceback and source_of(operation) == source:
            _set_traceback(operation._c_op, shared)
