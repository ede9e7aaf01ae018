"""Kinds of tensors, and the tensor behind a ``tf.TensorArray``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops.tensor_array_ops import build_ta_with_new_flow


def is_eager(value: Any) -> bool:
    """Whether ``value`` is a tensor that has a value, rather than one of a graph."""
    return isinstance(value, tf.__internal__.EagerTensor)


def is_composite(value: Any) -> bool:
    """Whether ``value`` consists of tensors, as a ragged or a sparse tensor does."""
    return isinstance(value, tf.__internal__.CompositeTensor)


def is_trackable(value: Any) -> bool:
    """Whether TensorFlow follows what is in ``value``: a variable, a layer, a ``tf.Module``, an optimizer."""
    return isinstance(value, tf.__internal__.tracking.Trackable)


def with_flow(array: tf.TensorArray, flow: tf.Tensor) -> tf.TensorArray:
    """Return a ``tf.TensorArray`` like ``array``, with ``flow`` behind it."""
    return build_ta_with_new_flow(array, flow)
