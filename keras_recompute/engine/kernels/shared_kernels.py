"""Shared kernels: what reads one slice of a stacked gradient is compiled once for all slices.

For XLA on a CPU. The loop over equal blocks returns the gradient of its stacked weights as one
array, and an optimizer updates each block's weights from its slice. XLA compiles equal kernels
once. But a slice at a known place is part of the kernel that reads it, so each block would have
kernels of its own: half of the kernels of a deep network. At a number that XLA does not know, the
place is a value that the kernel is given.

What it gains: benchmarks/notes/first_step.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from ...seams.tensorflow.vectorized_map import is_in_vectorized_body
from ..graph.graph_constants import constant, start_indices
from ..graph.opaque_values import opaque_false
from ..graph.target import Target
from ..graph.target_ops import with_body_passes


def share_slice_kernels(
    wholes: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], target: Target
) -> list[tf.Tensor]:
    """Return ``gradients`` of ``wholes``; those of stacks are put together from hidden slices."""
    are_stacks = []
    for whole, gradient in zip(wholes, gradients):
        are_stacks.append(whole.op.type == "Pack" and gradient.shape.num_elements() != 0)
    if not any(are_stacks) or is_in_vectorized_body(tf.compat.v1.get_default_graph()):
        return list(gradients)
    of_stacks = list(itertools.compress(gradients, are_stacks))
    # One loop makes the numbers for all stacks of one length.
    counts = {gradient.shape[0] for gradient in of_stacks}
    numbers = {count: _numbers(count, of_stacks[0], target) for count in counts}
    results = []
    for gradient, is_stack in zip(gradients, are_stacks):
        made = _of_shares(gradient, numbers[gradient.shape[0]]) if is_stack else gradient
        results.append(made)
    return results


def _numbers(count: int, after: tf.Tensor, target: Target) -> list[tf.Tensor]:
    """Return 0 to ``count - 1``, as values that XLA does not know.

    Each turn of a loop, from the last number to the first, passes its own to the next one. The
    start at the last number is hidden. Numbers that are added or selected would be part of the
    kernels again.
    """

    def body(number: tf.Tensor, *later: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return (number - 1, number, *later[:-1])

    begin = tf.cast(opaque_false([after]), tf.int32) + (count - 1)
    start = (begin, *[constant(0)] * count)
    _, *numbers = tf.while_loop(
        lambda number, *_: number >= 0, with_body_passes(body, target), start, parallel_iterations=1
    )
    return numbers


def _of_shares(stack: tf.Tensor, numbers: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return ``stack`` as its slices one after the other.

    XLA does not make this array where slices are read alone.
    """
    size = constant((1, *stack.shape[1:]))
    return tf.concat(
        [tf.slice(stack, start_indices(0, number, stack.shape.rank), size) for number in numbers],
        constant(0),
    )
