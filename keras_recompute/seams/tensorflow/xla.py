"""XLA's own operations, for which TensorFlow has no kernels, and whether a graph is for XLA.

``xla_pad`` pads by numbers of elements. ``xla_dynamic_update_slice`` writes a slice in place.
``xla_conv_v2`` is a convolution in any layout. ``xla_optimization_barrier`` returns its arguments
as values that XLA does not know to be equal to them.
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

__all__ = [
    "is_for_xla",
    "xla_conv_v2",
    "xla_dynamic_update_slice",
    "xla_optimization_barrier",
    "xla_pad",
]


def is_for_xla(graph: Any) -> bool:
    """Whether ``graph``, or one around it, is traced for ``jit_compile=True``."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
