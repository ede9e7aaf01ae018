"""Tracebacks that TensorFlow keeps per operation: captured here, and set on operations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.util import _tf_stack, tf_stack

_SET: Any = getattr(pywrap_tf_session, "TF_SetOpStackTrace", None)


# Both return the traceback of the line that calls them, so they must not be wrapped. The first is
# mapped to the user's lines where AutoGraph generated code; the second is as Python runs it.
traceback_here: Callable[[], Any] = tf_stack.extract_stack
traceback_as_run: Callable[[], Any] = functools.partial(
    _tf_stack.extract_stack, _tf_stack.PyBindSourceMap(), _tf_stack.PyBindFileSet(), 0
)


def _set(operation: tf.Operation, traceback: Any) -> None:
    """Replace the traceback of ``operation``."""
    _SET(operation._c_op, traceback)


# None in releases without the private function: operations keep the tracebacks that they have.
set_traceback: Any = None if _SET is None else _set
