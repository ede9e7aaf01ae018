"""Completion: a scalar that XLA has only once whole arrays are computed.

A section waits by such a scalar for the updates of weights behind it (see ``update_order``). An
element that is sliced from an updated weight is not enough: XLA would compute that one element from
elements of the gradient, and update the weight later. So the elements are sliced inside a branch
that is given the whole arrays. On a GPU they are sliced behind an optimization barrier.

What it gains: benchmarks/notes/updates.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ...backends import GPU, backend_now
from ...seams.tensorflow.xla import xla_optimization_barrier
from ..graph.opaque_values import branches, first_element, opaque_false, with_elements


def token_of_whole_arrays(tensors: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Return a float32 scalar that depends on each of ``tensors``, numbers of any shape.

    None where all of them are empty.
    """
    tensors = with_elements(tensors)
    if not tensors:
        return None
    if backend_now() == GPU:
        return _sum_of_first_elements(*xla_optimization_barrier(tensors))

    kinds = tuple((t.shape, t.dtype) for t in tensors)
    # XLA cannot know that the second branch is always taken, so it keeps both.
    summed, negated = branches((_sum_of_first_elements, _negated_sum), kinds)
    (token,) = tf.raw_ops.StatelessIf(
        cond=opaque_false(tensors[:1]),
        input=tensors,
        Tout=[tf.float32],
        then_branch=negated,
        else_branch=summed,
        output_shapes=[()],
    )
    return token


def _sum_of_first_elements(*tensors: tf.Tensor) -> tf.Tensor:
    return tf.add_n(list(map(first_element, tensors)))


def _negated_sum(*tensors: tf.Tensor) -> tf.Tensor:
    return -_sum_of_first_elements(*tensors)
