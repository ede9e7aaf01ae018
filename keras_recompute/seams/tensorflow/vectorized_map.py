"""Detection of the body of a vectorised map, such as ``tf.vectorized_map`` or a Jacobian.

TensorFlow calls such a body once in the outer graph. Operations that depend on the element are
then rewritten for all elements at once; the others stay.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from tensorflow.python.ops.parallel_for import control_flow_ops

_WRITES_BODY = control_flow_ops._pfor_impl.__code__


def is_in_vectorized_body(graph: Any) -> bool:
    """Whether the body of a vectorised map is being traced into ``graph``."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        writes_body = frame.f_code is _WRITES_BODY
        if writes_body and getattr(frame.f_locals.get("loop_var"), "graph", None) is graph:
            return True
    return False
