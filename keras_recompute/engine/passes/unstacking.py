"""Unstacking: a loop selects one tensor per turn from a chain, and no stack is made.

For XLA, which makes one pass over the result of a chain of selections between two tensors. Without
XLA every selection would be an array of its own. XLA does not do this by itself: a stack in front
of a loop is an array of the size of all tensors.

What it gains: benchmarks/notes/attention.md.
"""

from __future__ import annotations

import tensorflow as tf

from ..graph.graph_constants import Number, constant, equal_to
from ..graph.op_sets import known_elements
from ..graph.target import Target
from .thresholds import UNSTACKED_ELEMENTS


def select_chain_slice(
    whole: tf.Tensor, axis: int, begin: Number, length: int, _: Target
) -> tf.Tensor | None:
    """Return ``length`` steps of ``whole`` if they are one of the tensors that it stacks.

    Else None.
    """
    is_stack = whole.op.type == "Pack" and whole.op.get_attr("axis") == 0
    if (
        not is_stack
        or axis != 0
        or length != 1
        or known_elements(whole.op.inputs[0]) < UNSTACKED_ELEMENTS
    ):
        return None
    selected, *others = whole.op.inputs
    for n, other in enumerate(others, start=1):
        selected = tf.where(equal_to(begin, n), other, selected)
    return tf.expand_dims(selected, constant(0))
