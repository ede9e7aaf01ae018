"""Whether the body of a vectorised map is under construction: ``tf.vectorized_map``, and Jacobians that are made by one.

TensorFlow calls such a body once in the graph around it, and writes what depends on the element once more for all of them.
What does not depend on it stays as it is.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from tensorflow.python.ops.parallel_for import control_flow_ops

_WRITES_BODY = control_flow_ops._pfor_impl.__code__


def is_in_vectorized_body(graph: Any) -> bool:
    """Whether a function that was called for one element of a vectorised map writes into ``graph`` now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _WRITES_BODY and getattr(frame.f_locals.get("loop_var"), "graph", None) is graph:
            return True
        frame = frame.f_back
    return False
