"""Keras's batch normalisation by TensorFlow's kernel for it, where nothing asks for more than that computes.

Keras writes some forty operations for the layer and its gradient in training. The kernel and that of its gradient are one each.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

_Layer = keras.layers.BatchNormalization
_plain_call = _Layer.call
_fuses: ContextVar[bool] = ContextVar("whether batch normalisation is one kernel", default=False)


@contextlib.contextmanager
def batch_normalization_fused() -> Iterator[None]:
    """Have Keras's batch normalisation in training, of images with their channels last, be one operation in this thread."""
    _Layer.call = _call
    token = _fuses.set(True)
    try:
        yield
    finally:
        _fuses.reset(token)


@functools.wraps(_plain_call)  # Keras reads the parameters of a layer's call
def _call(self: Any, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> Any:
    if not (_fuses.get() and training and self.trainable and mask is None and _is_fusible(self, inputs)):
        return _plain_call(self, inputs, training=training, mask=mask)
    channels = inputs.shape[-1]
    y, mean, variance, *reserved = tf.raw_ops.FusedBatchNormV3(
        x=inputs,
        scale=tf.convert_to_tensor(self.gamma) if self.scale else tf.ones([channels]),
        offset=tf.convert_to_tensor(self.beta) if self.center else tf.zeros([channels]),
        mean=[],
        variance=[],
        epsilon=self.epsilon,
        is_training=True,
    )
    reserved[-1].set_shape([])  # a number, on a CPU, of which TensorFlow does not know the shape before it runs
    # The kernel divides the sum of squares by one less than their number, Keras by their number.
    count = tf.cast(tf.size(inputs) // channels, variance.dtype)
    variance *= (count - 1) / count
    for moving, now in ((self.moving_mean, mean), (self.moving_variance, variance)):
        moving.assign(moving * self.momentum + now * (1.0 - self.momentum))
    return y


def _is_fusible(layer: Any, inputs: tf.Tensor) -> bool:
    is_plain = type(layer)._moments is _Layer._moments and not layer.synchronized and not getattr(layer, "renorm", False)
    is_image = inputs.shape.rank == 4 and inputs.shape[-1] is not None and layer.axis in (-1, 3)
    return is_plain and is_image and inputs.dtype == tf.float32 and layer.compute_dtype == "float32"
