"""XLA's operations, which TensorFlow has no kernels for, and whether a graph is traced for them.

``xla_pad`` pads by numbers of elements, ``xla_dynamic_update_slice`` writes a piece in place, ``xla_conv_v2`` is a convolution
in any layout, and of what ``xla_optimization_barrier`` returns XLA does not know that it equals what it was given.
"""

from __future__ import annotations

from typing import Any

from tensorflow.compiler.tf2xla.ops.gen_xla_ops import (
    xla_conv_v2,
    xla_dynamic_update_slice,
    xla_optimization_barrier,
    xla_pad,
)
from tensorflow.python.ops import control_flow_util

__all__ = ["is_for_xla", "xla_conv_v2", "xla_dynamic_update_slice", "xla_optimization_barrier", "xla_pad"]


def is_for_xla(graph: Any) -> bool:
    """Whether ``graph``, or one around it, is traced for ``jit_compile=True``."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
