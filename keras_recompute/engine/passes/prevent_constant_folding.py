"""Zeros that exist only where the compiled program makes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from ...seams.tensorflow.xla import xla_pad
from ..once import along, once
from ..target import target_now

_SMALL = 4096


def zeros(shape: Sequence[int | tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Return zeros of ``shape``, whose dimensions may be scalar tensors.

    Before XLA sees a graph, TensorFlow computes all of it that reads no input, so that ``tf.zeros`` is made in memory and
    stays there: over 100 MiB for a small transformer. Under XLA large zeros are an empty tensor padded by an operation that
    TensorFlow has no kernel for, which XLA turns into the broadcast that ``tf.zeros`` becomes too.
    """
    if "late_zeros" not in target_now().passes or not all(isinstance(d, int) for d in shape) or math.prod(shape) < _SMALL:
        return tf.zeros(shape, dtype)
    nothing, below = once(tf.zeros, (0, *shape[1:]), dtype), along(0, 0, len(shape))
    return xla_pad(nothing, once(tf.zeros, (), dtype), along(0, shape[0], len(shape)), below, below)


def zeros_like(tensor: tf.Tensor) -> tf.Tensor:
    """Return zeros of the type and shape of ``tensor``."""
    is_plain = tensor.shape.is_fully_defined() and tensor.dtype not in (tf.variant, tf.resource)
    return zeros(tensor.shape.as_list(), tensor.dtype) if is_plain else tf.zeros_like(tensor)
