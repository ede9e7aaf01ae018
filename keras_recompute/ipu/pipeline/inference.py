"""Evaluation and prediction of a model without a pipeline, in a loop over its microbatches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...engine import target_now
from ...engine.scan import SliceStore, empty_all, put_all, whole_all
from .accumulation import losses_of_each, record_each, repeat
from .emulated_replicas import Replicas


def evaluate_microbatches(
    model: keras.Model, feed: Any, first: tf.Tensor, count: int, replicas: Replicas
) -> None:
    """Update the metrics of ``model`` with ``count`` microbatches from ``feed[first]`` on.

    It does what Keras's own test step does.
    """

    def microbatch(m: tf.Tensor) -> tuple[tf.Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(_microbatch(feed, m))
        y_pred = model(x, training=False)
        parts = (x, y, y_pred, sample_weight)
        record_each(model, parts, replicas, losses_of_each(model, parts, replicas, training=False))
        return (m + 1,)

    repeat(microbatch, first, count)


def prediction_specs(model: keras.Model, feed: Any) -> Any:
    """Return the nest of specs of the prediction for one microbatch of ``feed``."""
    data = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape[1:], t.dtype), feed)
    traced = tf.function(lambda data: _predict(model, data), autograph=False).get_concrete_function(
        data
    )
    return tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs
    )


def predict_microbatches(
    model: keras.Model, feed: Any, first: tf.Tensor, count: int, specs: Any
) -> list[tf.Tensor]:
    """Return the stacked predictions for ``count`` microbatches from ``feed[first]`` on.

    They are the leaves of the predictions; ``specs`` are those of one microbatch.
    """
    pieces = [SliceStore(count, tuple(spec.shape), spec.dtype) for spec in tf.nest.flatten(specs)]

    def microbatch(m: tf.Tensor, stores: list[Any]) -> tuple[Any, ...]:
        found = tf.nest.flatten(_predict(model, _microbatch(feed, m)))
        return m + 1, put_all(pieces, stores, m - first, found)

    _, stores = repeat(microbatch, first, count, empty_all(pieces, target_now()))
    return whole_all(pieces, stores)


def _predict(model: keras.Model, data: Any) -> Any:
    """Return the prediction for a microbatch."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return model(x, training=False)


def _microbatch(feed: Any, m: tf.Tensor) -> Any:
    """Return microbatch ``m``."""
    return tf.nest.map_structure(lambda t: t[m], feed)
