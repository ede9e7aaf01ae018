"""A checkpointed layer or function does what its objects say now, not what they said when it was
traced.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.calls.object_state import ObjectState, dependencies_of
from keras_recompute.engine.calls.program_cache import cache_for
from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.layers.recomputation_checkpoint import RecomputationCheckpoint
from keras_recompute.models.classes.model import Model
from tests.oracle import assert_all_close, loss_and_gradients

pytestmark = [
    pytest.mark.filterwarnings("ignore:the checkpoint of .* saves no memory"),
    # Layers here count their traces.
    pytest.mark.filterwarnings("ignore:.*changes 'calls' of .* will not happen at later calls"),
]

X = tf.random.stateless_normal((16, 4), (0, 1)) * 3 + 2


class Scaled(keras.layers.Layer):
    """A layer with a tensor and a number among its attributes, which also counts its calls."""

    def __init__(self):
        super().__init__()
        self.scale, self.power, self.calls = tf.constant(2.0), 1, 0

    def call(self, x):
        self.calls += 1
        return tf.exp(-((x * self.scale) ** (2 * self.power)))


def test_a_frozen_batch_norm_leaves_its_statistics():
    layer = keras.layers.BatchNormalization()
    wrapped = checkpoint(layer)
    wrapped(X, training=True)
    layer.trainable = False
    mean = layer.moving_mean.numpy()
    np.testing.assert_allclose(wrapped(X, training=True), layer(X, training=True), rtol=1e-6)
    np.testing.assert_array_equal(layer.moving_mean.numpy(), mean)
    layer.trainable = True
    wrapped(X, training=True)
    assert np.abs(layer.moving_mean.numpy() - mean).max() > 1e-3
    assert (
        len(cache_for(layer, None)) == 2
    )  # of a layer that trains, made once, and of a frozen one


def test_a_model_with_a_frozen_batch_norm_leaves_its_statistics():
    inputs = keras.Input((4,))
    layer = keras.layers.BatchNormalization()
    model = Model(
        inputs,
        keras.layers.Dense(1)(RecomputationCheckpoint()(keras.layers.Dense(4)(layer(inputs)))),
    )
    model(X, training=True)
    layer.trainable = False
    mean = layer.moving_mean.numpy()
    model(X, training=True)
    np.testing.assert_array_equal(layer.moving_mean.numpy(), mean)


def through(layer, how):
    """Return ``layer`` as a checkpointed layer, inside a checkpointed function, or in a model of
    ours.
    """
    if how == "layer":
        return checkpoint(layer)
    if how == "function":
        return checkpoint(lambda x, training=False: layer(x, training=training))
    inputs = keras.Input((4,))
    outputs = keras.layers.Activation("linear")(
        RecomputationCheckpoint()(layer(keras.layers.Rescaling(1.0)(inputs)))
    )
    return Model(inputs, outputs)


HOW = pytest.mark.parametrize("how", ["layer", "function", "model"])


@HOW
def test_lora_weights_get_gradients(how):
    layer = keras.layers.Dense(2, activation="tanh")
    wrapped = through(layer, how)
    wrapped(X, training=True)
    layer.enable_lora(1)
    layer.lora_kernel_b.assign(tf.ones_like(layer.lora_kernel_b))

    options = {"weights": [w.value for w in layer.trainable_variables], "loss": tf.identity}

    def gradients_of(function):
        return loss_and_gradients(lambda x: function(x, training=True), X, mode="eager", **options)

    found, wanted = map(gradients_of, (wrapped, layer))
    assert_all_close(found, wanted, rtol=1e-5, atol=1e-6)


@HOW
def test_a_layer_that_was_quantized(how):
    layer = keras.layers.Dense(8)
    wrapped = through(layer, how)
    before = wrapped(X, training=True)
    layer.quantize("int8")
    found, wanted = wrapped(X, training=True), layer(X)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert np.abs(np.subtract(found, before)).max() > 0  # eight bits are not the same


@HOW
def test_numbers_and_tensors_of_a_layer(how):
    layer = Scaled()
    wrapped = through(layer, how)
    for name, value in (
        ("scale", tf.constant(0.3)),
        ("power", 2),
        ("scale", tf.constant(0.2)),
        ("power", 1),
    ):
        setattr(layer, name, value)
        np.testing.assert_allclose(wrapped(X, training=True), layer(X), rtol=1e-5)


def test_a_weight_that_was_added():
    class Growing(keras.layers.Layer):
        def build(self, shape):
            self.parts = [self.add_weight(shape=shape[-1:], initializer="ones", name="first")]

        def grow(self):
            self._tracker.unlock()
            self.parts.append(
                self.add_weight(shape=(4,), initializer="ones", name=f"part_{len(self.parts)}")
            )
            self._tracker.lock()

        def call(self, x):
            return tf.add_n([tf.sin(x * part) for part in self.parts])

    layer = Growing()
    wrapped = checkpoint(layer)
    wrapped(X)
    layer.grow()
    with tf.GradientTape() as tape:
        y = wrapped(X)
    np.testing.assert_allclose(y, layer(X), rtol=1e-6)
    assert all(
        g is not None for g in tape.gradient(y, [w.value for w in layer.trainable_variables])
    )


def test_what_a_layer_counts_makes_no_new_program():
    layer = Scaled()
    layer.built = True
    wrapped = checkpoint(layer)
    for _ in range(3):  # two signatures by turns, each traced with another count
        wrapped(X)
        wrapped(X[:3])
    assert layer.calls == 2
    assert len(cache_for(layer, None)) == 2


def test_a_tensor_of_an_object_that_is_given():
    class Settings:
        scale = None

    settings = Settings()
    wrapped = checkpoint(lambda settings, x: tf.exp(tf.sin(x) * settings.scale))
    for value in (1.0, 5.0, 1.0):
        settings.scale = tf.constant(value)
        np.testing.assert_allclose(wrapped(settings, X), tf.exp(tf.sin(X) * value), rtol=1e-6)


def test_a_tensor_that_is_closed_over():
    scale = tf.constant(1.0)
    wrapped = checkpoint(lambda x: tf.exp(tf.sin(x) * scale))
    for value in (1.0, 5.0):
        scale = tf.constant(value)
        np.testing.assert_allclose(wrapped(X), tf.exp(tf.sin(X) * value), rtol=1e-6)


def test_the_layers_of_a_list_and_the_object_of_a_method():
    layers = [keras.layers.Dense(4), keras.layers.Dense(4)]
    first, second = dependencies_of(lambda x: layers[1](layers[0](x)), ())
    assert (first, second) == tuple(layers)

    class Network:
        def __init__(self):
            self.dense = keras.layers.Dense(4)

        def run(self, x):
            return self.dense(x)

    network = Network()
    attributes = ObjectState(dependencies_of(network.run, ()))
    before = attributes.version()
    network.dense.trainable = False
    assert attributes.version() != before
    network.dense.trainable = True
    assert attributes.version() == before


@pytest.mark.parametrize(
    "kind", [keras.layers.Dense, keras.layers.LSTM, keras.layers.BatchNormalization]
)
def test_calls_of_keras_layers_set_nothing(kind):
    layer = kind(3) if kind is not keras.layers.BatchNormalization else kind()
    x = tf.ones((2, 5, 4))
    layer(x)
    attributes = ObjectState((layer,))
    attributes.version()
    parts = attributes._parts
    layer(x, training=True)
    attributes.version()
    assert attributes._parts is parts  # nothing had to be looked up again
