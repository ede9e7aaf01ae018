"""Sparse gradients as plain tensors, which is what programs exchange.

The sides of a branch may gather different numbers of rows, and so give different numbers of slices to the gradient of what
they gather from. TensorFlow's graph optimiser takes the shape of the first side for both. The derivative of a sum of slices
then fails, since it asks for shapes, and TensorFlow makes such sums wherever it adds gradients up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import tensorflow as tf

from ..seams.tensorflow.gradients import gradient_of_type, set_gradient
from .by_value import BRANCHES

_OF_A_BRANCH = "keras_recompute.DenseGradientOfBranch"


def dense(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Return ``gradient`` as one tensor; an unknown number of slices by a scatter, whose derivative asks for no shape."""
    if isinstance(gradient, tf.IndexedSlices) and gradient.dense_shape is not None:
        rows, shape = gradient.indices, gradient.dense_shape
        if rows.shape.rank == 1 and rows.shape[0] is None:
            return tf.scatter_nd(tf.expand_dims(rows, 1), gradient.values, tf.cast(shape, rows.dtype))
    return tf.convert_to_tensor(gradient)


@contextlib.contextmanager
def dense_behind_branches(operations: Iterable[tf.Operation]) -> Iterator[None]:
    """Differentiate the branches among ``operations`` to plain tensors inside."""
    branches = [operation for operation in operations if operation.type in BRANCHES]
    for branch in branches:
        set_gradient(branch, _OF_A_BRANCH)
    try:
        yield
    finally:
        for branch in branches:
            set_gradient(branch, None)


@tf.RegisterGradient(_OF_A_BRANCH)
def _gradient_of_a_branch(branch: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    return [None if g is None else dense(g) for g in gradient_of_type(branch.type)(branch, *gradients)]
