"""Predicates on kinds of tensors, and a ``tf.TensorArray`` with another flow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops.tensor_array_ops import build_ta_with_new_flow


def is_eager(value: Any) -> bool:
    """Whether ``value`` is an eager tensor, and not one of a graph."""
    return isinstance(value, tf.__internal__.EagerTensor)


def is_of(value: Any, graph: Any) -> bool:
    """Whether ``value`` is a tensor of ``graph``, and of no graph inside it."""
    return isinstance(value, tf.Tensor) and not is_eager(value) and value.graph is graph


def is_composite(value: Any) -> bool:
    """Whether ``value`` consists of several tensors, as ragged and sparse ones do."""
    return isinstance(value, tf.__internal__.CompositeTensor)


def is_trackable(value: Any) -> bool:
    """Whether TensorFlow tracks ``value``: a variable, layer, ``tf.Module`` or optimizer."""
    return isinstance(value, tf.__internal__.tracking.Trackable)


def with_flow(array: tf.TensorArray, flow: tf.Tensor) -> tf.TensorArray:
    """Return a copy of the ``tf.TensorArray`` ``array`` whose flow is ``flow``."""
    return build_ta_with_new_flow(array, flow)
