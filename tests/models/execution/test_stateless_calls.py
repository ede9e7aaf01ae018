"""Keras's stateless calls of models that recompute: losses, statistics and seeds come back as from
the plain model.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from tests.oracle import assert_all_close

L = keras.layers
X = np.random.default_rng(0).random((4, 6)).astype("float32")
Y = 2 * X


class Block(L.Layer):
    """Two layers with a loss, statistics, and numbers that are drawn."""

    def build(self, shape):
        self.dense = L.Dense(6, "gelu", activity_regularizer="l2", kernel_regularizer="l2")
        self.norm, self.drop = L.BatchNormalization(epsilon=0.1), L.Dropout(0.3, seed=1)
        self.dense.build(shape)
        self.norm.build(shape)

    def call(self, x, training=None):
        return self.drop(self.norm(self.dense(x), training=training), training=training)


def network(model_class=keras.Model):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((6,))
    for n in range(4):
        x = L.Dense(6, "gelu", activity_regularizer="l2", name=f"dense_{n}")(x)
        x = Block(name=f"block_{n}")(x)
    return model_class(inputs, x)


WAYS = {
    "every": lambda model: kr.checkpointed(model, every=2),
    "layers": lambda model: kr.checkpointed(model, layers=Block),
    "wrapped": kr.checkpoint,
}


def trained(model, mode):
    """Return losses, and all variables after two updates, none of which changes the model."""
    model.compile("sgd", "mse")

    def step(trained, others):
        with tf.GradientTape() as tape:
            tape.watch(trained)
            outputs, others, added = model.stateless_call(
                trained, others, X, training=True, return_losses=True
            )
            loss, _ = model.stateless_compute_loss(
                trained, others, [], x=X, y=Y, y_pred=outputs, training=True
            )
            total = loss + tf.add_n(added)
        gradients = tape.gradient(total, trained)
        # Keras has no stateless updates on TensorFlow.
        return added, [w - 0.1 * g for w, g in zip(trained, gradients, strict=True)], others

    if mode != "eager":
        step = tf.function(step, autograph=False, jit_compile=mode == "jit")
    groups = (model.trainable_variables, model.non_trainable_variables)
    values = [[tf.identity(variable.value) for variable in group] for group in groups]
    found = []
    for _ in range(2):
        added, *values = step(*values)
        found.append(added)
    return [np.asarray(value) for value in tf.nest.flatten([found, values])]


@pytest.mark.parametrize(
    "way", [way if way == "every" else pytest.param(way, marks=pytest.mark.long) for way in WAYS]
)
@pytest.mark.parametrize(
    "mode", ["graph", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("eager", "jit"))]
)
def test_stateless_steps_are_the_plain_model_s(way, mode):
    plain, ours = network(), WAYS[way](network())
    before = [weight.numpy() for weight in ours.weights]
    found, expected = trained(ours, mode), trained(plain, mode)
    assert len(found) == len(expected)
    assert_all_close(found, expected, rtol=1e-4, atol=1e-5)
    for weight, value in zip(ours.weights, before):
        np.testing.assert_array_equal(weight, value, err_msg=weight.path)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_variables_may_stand_for_their_values(way, training):
    def results(model):
        values = [v.value for v in model.trainable_variables]
        others = [v.value for v in model.non_trainable_variables]
        called = model.stateless_call(values, others, X, training=training, return_losses=True)
        return [np.asarray(tf.convert_to_tensor(value)) for value in tf.nest.flatten(called)]

    assert_all_close(results(WAYS[way](network())), results(network()), rtol=1e-4, atol=1e-5)


def test_without_losses_none_are_collected():
    model = kr.checkpointed(network(), every=2)
    values = [
        [v.value for v in group]
        for group in (model.trainable_variables, model.non_trainable_variables)
    ]
    with tf.GradientTape():
        assert len(model.stateless_call(*values, X, training=True)) == 2
    assert not any(layer._losses for layer in model.layers)
