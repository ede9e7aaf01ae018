"""What Keras layers keep and leave inside a checkpointed function: weights made on first call,
statistics, losses, metrics.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.errors import InvalidArgumentError
from tests.oracle import COMPILE_OPTIONS, assert_all_close

pytestmark = pytest.mark.filterwarnings("ignore:.build... was called on layer")

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)


@keras.saving.register_keras_serializable(package="tests.state_of_layers")
class Block(keras.layers.Layer):
    """It has no ``build``, so Keras builds it by a symbolic call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.up = keras.layers.Dense(
            12, activation="gelu", activity_regularizer=keras.regularizers.L2(0.1)
        )
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.drop = keras.layers.Dropout(0.3, seed=1)
        self.down = keras.layers.SpectralNormalization(
            keras.layers.Dense(6, kernel_regularizer="l2")
        )
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x, training=None):
        return x + self.body(x, training)

    def body(self, x, training):
        y = self.drop(self.norm(self.up(x), training=training), training=training)
        y = self.down(y, training=training)
        self.add_loss(0.1 * tf.reduce_mean(y**2))
        self.mean.update_state(tf.reduce_mean(y**2))
        return y


@keras.saving.register_keras_serializable(package="tests.state_of_layers")
class Decorated(Block):
    call = checkpoint(Block.call)


@keras.saving.register_keras_serializable(package="tests.state_of_layers")
class Wrapping(Block):
    def call(self, x, training=None):
        return x + checkpoint(self.body)(x, training)


@keras.saving.register_keras_serializable(package="tests.state_of_layers")
class Closing(Block):
    def call(self, x, training=None):
        def body(x):
            return self.body(x, training)

        return x + checkpoint(body)(x)


KINDS = pytest.mark.parametrize(
    "kind",
    [
        Decorated,
        *(
            pytest.param(kind, marks=pytest.mark.long(every_case=True))
            for kind in (Wrapping, Closing)
        ),
    ],
)


def network(kind):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(1)(kind()(kind()(inputs))))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@KINDS
@pytest.mark.parametrize(
    "mode", ["graph", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("eager", "jit"))]
)
def test_state_and_losses_are_those_of_the_plain_layer(kind, mode):
    found = []
    for each in (Block, kind):
        model = network(each)
        model.compile(keras.optimizers.SGD(0.1), "mse", **COMPILE_OPTIONS[mode])
        history = model.fit(X, X[:, :1], epochs=3, verbose=0).history
        found.append([history["loss"], history["mean"], *model.get_weights()])
    assert_all_close(*found, rtol=2e-4, atol=1e-5)


@KINDS
def test_a_saved_layer_is_loaded_with_its_state(kind, tmp_path):
    found = []
    for each in (Block, kind):
        model = network(each)
        model.fit(X, X[:, :1], verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
        found.append(
            [
                loaded.fit(X, X[:, :1], verbose=0, shuffle=False).history["loss"],
                *loaded.get_weights(),
            ]
        )
    assert_all_close(*found, rtol=2e-4, atol=1e-5)


def test_losses_of_an_eager_call_have_gradients():
    ours, plain = Decorated(), Block()
    for layer in (ours, plain):
        layer(X)
    ours.set_weights(plain.get_weights())
    found = []
    for layer in (ours, plain):
        with tf.GradientTape() as tape:
            layer(X, training=True)
            losses = layer.losses
            total = tf.add_n(losses)
        found.append([*losses, *tape.gradient(total, [v.value for v in layer.trainable_variables])])
    assert len(found[0]) == 3 + len(ours.trainable_variables), "added, of activity, of a kernel"
    assert_all_close(*found, rtol=2e-4, atol=1e-6)
    assert len(layer.losses) == 3, "a second call does not add to those of the first"


def test_a_function_that_returns_losses_alone_is_refused():
    layer = Block()
    layer(X)

    def nothing(x):
        layer.add_loss(tf.reduce_sum(x))

    with pytest.raises(InvalidArgumentError, match="which has no tensor"):
        checkpoint(nothing)(X)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_stateless_calls_have_the_values_that_they_are_given(in_graph):
    """Twice with other values: they must not be those of the variables, nor those of the first
    call.
    """
    found = []
    for wrap in (checkpoint, lambda function: function):
        dense, norm = keras.layers.Dense(4, "gelu"), keras.layers.BatchNormalization(momentum=0.5)

        class Model(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.parts = [dense, norm]  # noqa: B023

            def call(self, x, training=None):
                return wrap(lambda x: tf.sin(norm(dense(x), training=training)))(x)  # noqa: B023

        model = Model()
        model(X)
        rng = np.random.default_rng(1)
        trained = [
            tf.constant(rng.normal(size=v.shape), tf.float32) for v in model.trainable_variables
        ]
        state = [tf.constant(v) for v in model.non_trainable_variables]

        def step(trained, state):
            with tf.GradientTape() as tape:
                tape.watch(trained)
                y, state = model.stateless_call(trained, state, X, training=True)  # noqa: B023
                loss = tf.reduce_sum(y**2)
            return tape.gradient(loss, trained), state

        run = tf.function(step) if in_graph else step
        for _ in range(2):
            gradients, state = run(trained, state)
            trained = [
                value - 0.1 * gradient for value, gradient in zip(trained, gradients, strict=True)
            ]
        found.append([*trained, *state, *model.get_weights()[2:4]])
    assert_all_close(*found, rtol=1e-3, atol=1e-5)
