"""Sparse gradients as plain tensors, which is what programs exchange."""

from __future__ import annotations

import tensorflow as tf


def dense(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Return ``gradient`` as one tensor. What is gathered from a tensor gives it a gradient of slices.

    The sides of a branch may give different numbers of slices. TensorFlow's graph optimiser then takes that of the first side
    for both, which fails in the derivative of a segment sum, since that asks for shapes. The derivative of a scatter does not.
    """
    if isinstance(gradient, tf.IndexedSlices) and gradient.dense_shape is not None:
        rows, shape = gradient.indices, gradient.dense_shape
        if rows.shape.rank == 1 and rows.shape[0] is None:
            return tf.scatter_nd(tf.expand_dims(rows, 1), gradient.values, tf.cast(shape, rows.dtype))
    return tf.convert_to_tensor(gradient)
