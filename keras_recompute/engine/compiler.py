"""Who will run the graph under construction: XLA, or TensorFlow operation by operation."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def under_xla() -> bool:
    """Whether the graph under construction is traced for ``jit_compile=True``, in which case XLA's operations exist."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))
