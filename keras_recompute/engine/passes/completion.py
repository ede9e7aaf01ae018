"""Completion: a scalar that XLA has only once whole arrays are computed.

The fence of a section waits for the updates of weights behind it by such a scalar (see ``update_order``). An element that is
sliced from an updated weight would not do: XLA computes a slice of a sum from slices of its terms, and leaves the update for
later. So the elements are sliced inside a branch, or on a GPU behind a barrier, which are given whole arrays.

What it gains: benchmarks/notes/updates.md.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...backends import GPU, backend_now
from ...seams.tensorflow.xla import xla_optimization_barrier
from .fence import first_element, never


def completion_token(tensors: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Return a float32 scalar that is computed from each of ``tensors``, numbers of any shape, as a whole.

    None where all of them are empty.
    """
    tensors = [t for t in tensors if t.shape.num_elements() != 0]
    if not tensors:
        return None
    if backend_now() == GPU:
        return _sum_of_first_elements(*xla_optimization_barrier(tensors))

    summed, negated = _branches(tuple((t.shape, t.dtype) for t in tensors))
    (token,) = tf.raw_ops.StatelessIf(
        cond=never(tensors[:1]),
        input=tensors,
        Tout=[tf.float32],
        then_branch=negated,
        else_branch=summed,
        output_shapes=[()],
    )
    return token


def _sum_of_first_elements(*tensors: tf.Tensor) -> tf.Tensor:
    return tf.add_n([first_element(t) for t in tensors])


def _negated_sum(*tensors: tf.Tensor) -> tf.Tensor:
    return -_sum_of_first_elements(*tensors)


@functools.lru_cache(maxsize=256)
def _branches(kinds: tuple[tuple[tf.TensorShape, tf.DType], ...]) -> tuple[Any, Any]:
    specs = [tf.TensorSpec(*kind) for kind in kinds]
    with tf.init_scope():  # a function of no graph: it would keep that alive
        functions = (tf.function(body, autograph=False) for body in (_sum_of_first_elements, _negated_sum))
        summed, negated = (function.get_concrete_function(*specs) for function in functions)
    return summed, negated
