"""The traceback that TensorFlow keeps of each operation: taken here, and set."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.util import _tf_stack, tf_stack

_SET: Any = getattr(pywrap_tf_session, "TF_SetOpStackTrace", None)


# Both return the traceback of the line that calls them, so no function of ours may stand between: the first as TensorFlow
# notes it, in the user's own lines where AutoGraph wrote others, the second as Python runs it.
traceback_here: Callable[[], Any] = tf_stack.extract_stack
traceback_as_run: Callable[[], Any] = functools.partial(
    _tf_stack.extract_stack, _tf_stack.PyBindSourceMap(), _tf_stack.PyBindFileSet(), 0
)


def _set(operation: tf.Operation, traceback: Any) -> None:
    """Give ``operation`` another ``traceback``. A release without it has None here, and operations keep what they have."""
    _SET(operation._c_op, traceback)


set_traceback: Any = None if _SET is None else _set
