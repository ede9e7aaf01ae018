"""Keras's other ways to train a model: weights of samples and classes, single batches, metrics,
steps of one's own.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.models.classes.model import Model
from tests.oracle import assert_all_close, assert_same_training, losses_of_fit

from ..networks import FEATURES, UNITS, mark, numbers, shared_dense
from ..same_training import model_pair

X, CLASSES = numbers(8, FEATURES), np.array([0, 1, 2, 0, 1, 2, 0, 1])


class CountsCalls(keras.layers.Layer):
    """Keeps a metric of its own and a count, as layers with ``add_metric`` did."""

    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean(name="mean_of_layer")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.mean.update_state(keras.ops.mean(x))
        self.calls.assign_add(1.0)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return keras.ops.tanh(x)


def classifier(model_class, dropout=0.3):
    inputs = x = keras.Input((FEATURES,))
    for _ in range(2):
        x = keras.layers.Dense(UNITS, kernel_regularizer="l2")(x)
        x = mark(CountsCalls()(keras.layers.Dropout(dropout, seed=1)(x)))
    return model_class(inputs, keras.layers.Dense(3, activation="softmax")(x))


def compiled(model, **options):
    optimizer = keras.optimizers.Adam(0.01)
    options = {"jit_compile": False, **options}
    model.compile(
        optimizer,
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["sparse_categorical_accuracy"],
        **options,
    )
    return model


def assert_same_weights(models):
    assert_all_close(*(model.get_weights() for model in models), atol=1e-5)


@pytest.mark.parametrize(
    "eager", [pytest.param(False, marks=pytest.mark.long), True], ids=["graph", "eager"]
)
def test_sample_weights_class_weights_and_metrics(eager):
    """Also the metric, the count and the added losses of layers inside sections: each moves once
    per step.
    """
    models = [compiled(model, run_eagerly=eager) for model in model_pair(classifier)]
    histories = []
    for model in models:
        weighted = model.fit(
            X, CLASSES, batch_size=4, sample_weight=np.linspace(0, 2, 8), shuffle=False, verbose=0
        ).history
        by_class = model.fit(
            X,
            CLASSES,
            batch_size=4,
            class_weight={0: 1.0, 1: 3.0, 2: 0.5},
            shuffle=False,
            verbose=0,
        ).history
        histories.append([*weighted.values(), *by_class.values()])
        assert set(weighted) >= {"loss", "accuracy", "sparse_categorical_accuracy"}
    np.testing.assert_allclose(*histories, rtol=1e-5)
    assert_same_weights(models)
    for model in models:
        counters = [layer for layer in model.layers if isinstance(layer, CountsCalls)]
        assert [float(layer.calls) for layer in counters] == pytest.approx([4.1, 4.1]), (
            "two batches, twice; twins begin at 0.1"
        )
        assert [float(layer.mean.count) for layer in counters] == [2.0, 2.0], (
            "Keras resets metrics before each epoch"
        )
    ours, plain = (
        [float(c.mean.result()) for c in model.layers if isinstance(c, CountsCalls)]
        for model in models
    )
    assert ours == pytest.approx(plain, rel=1e-4)


@pytest.mark.long
def test_single_batches():
    models = [compiled(model) for model in model_pair(classifier)]
    found = []
    for model in models:
        losses = [model.train_on_batch(X, CLASSES, return_dict=True)["loss"] for _ in range(2)]
        losses.append(model.test_on_batch(X, CLASSES, return_dict=True)["loss"])
        found.append([*losses, *model.predict_on_batch(X).ravel()])
    np.testing.assert_allclose(*found, rtol=2e-5)
    assert_same_weights(models)


class Stepping:
    """A training step of one's own, with a weight decay that no Keras loss knows."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) + 0.01 * tf.add_n(
                [tf.reduce_sum(v.value**2) for v in self.trainable_variables]
            )
        self.optimizer.apply(
            tape.gradient(loss, [v.value for v in self.trainable_variables]),
            self.trainable_variables,
        )
        return {"loss": loss}


class OursStepping(Stepping, Model):
    pass


class PlainStepping(Stepping, keras.Model):
    pass


def test_a_training_step_of_one_s_own_in_a_subclass():
    models = []
    for model_class in (OursStepping, PlainStepping):
        keras.utils.set_random_seed(1)
        models.append(classifier(model_class, dropout=0.0))
    loss = "sparse_categorical_crossentropy"
    assert_same_training(*models, X, CLASSES, loss=loss, batch_size=4, epochs=2)
    assert models[0].plan.recomputes


@pytest.mark.parametrize(
    "policy", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.long)]
)
def test_fit_in_mixed_precision(policy):
    """Loss scaling, which float16 needs, is the optimizer's: the scale moves as in the plain
    model.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        losses, scales = [], []
        for model in model_pair(shared_dense):
            losses.append(losses_of_fit(model, X, np.ones((8, 1)), batch_size=4, epochs=2))
            scales.append(getattr(model.optimizer, "dynamic_scale", None))
        np.testing.assert_allclose(*losses, rtol=1e-2)
        assert (scales[0] is None) == (policy == "mixed_bfloat16")
        assert scales[0] == scales[1] or float(scales[0]) == float(scales[1])
    finally:
        keras.config.set_dtype_policy(before)


def test_weights_go_both_ways(tmp_path):
    ours, plain = model_pair(shared_dense)
    plain.set_weights([w + 1 for w in plain.get_weights()])
    ours.set_weights(plain.get_weights())
    np.testing.assert_array_equal(ours(X), plain(X))
    ours.set_weights([w * 0.5 for w in ours.get_weights()])
    ours.save_weights(tmp_path / "w.weights.h5")
    plain.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(ours(X), plain(X))
