"""Equal traces share their gradient and partition; values, gradients and statistics stay those of
each.

Looks at what is differentiated: one time too many shows in neither values nor the compiled program,
only in time.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.frontend import build
from tests.oracle import assert_all_close, in_mode, loss_and_gradients

COUNT, WIDTH = 4, 8
X = np.random.default_rng(0).normal(size=(16, WIDTH)).astype(np.float32)
GRAPH = ["graph", pytest.param("jit", marks=pytest.mark.long)]
NAMES = [f"block_{number}" for number in range(COUNT)]


class Block(keras.layers.Layer):
    """A user's layer, with statistics and random numbers."""

    def __init__(self, activation, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(WIDTH, activation=activation)
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.dropout = keras.layers.Dropout(0.3)

    def call(self, x, training=None):
        return x + self.dropout(self.norm(self.dense(x), training=training), training=training)


def subclassed(block):
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [block(name) for name in NAMES]

        def call(self, x, training=None):
            for each in self.blocks:
                x = each(x, training=training)
            return x

    return Subclassed()


def functional(block):
    x = inputs = keras.Input((WIDTH,))
    for name in NAMES:
        x = block(name)(x)
    return keras.Model(inputs, x)


def made(kind, block):
    """Return a model of blocks whose weights all differ."""
    keras.utils.set_random_seed(0)
    model = kind(block)
    model(X)
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign_add(0.1 * rng.normal(size=variable.shape))
    return model


@pytest.fixture
def differentiated(monkeypatch):
    """The traces that were differentiated."""
    found = []
    plain = build.join
    monkeypatch.setattr(
        build, "join", lambda traced, **rest: found.append(traced) or plain(traced, **rest)
    )
    return found


def compared(model, ours, mode="graph"):
    """Check loss, gradients and all variables after a step of ``ours`` against ``model``'s."""
    state = [v.numpy() for v in model.variables]
    results = []
    for each in (model, ours):
        for variable, value in zip(model.variables, state):
            variable.assign(value)
        found = loss_and_gradients(each, X, mode=mode)
        results.append([*found, *(v.numpy() for v in model.variables)])
    assert_all_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", GRAPH)
@pytest.mark.parametrize("activation", ["gelu", "silu"])  # silu has a gradient of its own
def test_layers_of_a_users_class(differentiated, activation, mode):
    model = made(subclassed, lambda name: Block(activation, name=name))
    compared(model, kr.checkpointed(model, layers=Block), mode)
    assert len(differentiated) == 1


def test_sections_with_layers_of_a_users_class(differentiated):
    """The last of the four blocks is behind the last checkpoint, so that another policy holds."""
    model = made(functional, lambda name: Block("gelu", name=name))
    compared(model, kr.checkpointed(model, at=NAMES[:-1]))
    assert len(differentiated) == 2


@pytest.mark.parametrize("mode", GRAPH)
def test_functions_that_close_over_weights(differentiated, mode):
    weights = [tf.Variable(X[number : number + WIDTH] / 4) for number in range(COUNT)]

    def product(checkpoint):
        def run(x):
            for weight in weights:
                x = checkpoint(lambda x, weight=weight: tf.tanh(x @ weight) * x)(x)
            return x

        def step(x):
            with tf.GradientTape() as outer:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    result = tf.reduce_sum(run(x))
                slope = tape.gradient(result, x)
            return [result, slope, *outer.gradient(slope, weights)]

        return step

    found = in_mode(mode, product(kr.checkpoint))(tf.constant(X))
    wanted = in_mode(mode, product(lambda function: function))(tf.constant(X))
    assert_all_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert len(differentiated) == 1


def with_factor(number):
    return lambda x: x * (number + 1.0)


def with_slope(number):
    """The same values, and another gradient: a user's, which is looked at no further."""

    @tf.custom_gradient
    def function(x):
        return tf.identity(x), lambda dy: dy * (number + 1.0)

    return function


def with_name(number):
    return lambda x: kr.checkpoint_name(tf.sin(x), f"sin {number}")


def with_loop(_):
    return lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y)), (0, x))[1]


@pytest.mark.parametrize(
    "inner", [with_factor, with_slope, with_name, with_loop], ids=lambda inner: inner.__name__
)
def test_what_is_not_equal_is_differentiated_by_itself(differentiated, inner):
    model = made(
        functional,
        lambda name: keras.Sequential(
            [keras.layers.Dense(WIDTH), keras.layers.Lambda(inner(int(name[-1])))], name=name
        ),
    )
    compared(model, kr.checkpointed(model, at=NAMES[:-1]))
    assert len(differentiated) == COUNT


def test_a_frozen_layer_is_not_equal(differentiated):
    model = made(subclassed, lambda name: Block("gelu", name=name))
    model.blocks[2].dense.trainable = False
    compared(model, kr.checkpointed(model, layers=Block))
    assert len(differentiated) == 2


def test_a_users_policy_may_go_by_names(differentiated):
    """It saves the sine of the second function, and of no other."""

    def policy(value):
        return value.op.type == "Cos" or "function_1" in value.op.name

    @tf.function(autograph=False)
    def step(x):
        for number in range(3):

            def function(x, number=number):
                x = tf.tanh(x)
                with tf.name_scope(f"function_{number}"):
                    return tf.sin(tf.sin(tf.cos(x)))

            x = kr.checkpoint(function, policy=policy)(x)
        return x

    step.get_concrete_function(tf.TensorSpec(X.shape))
    assert len(differentiated) == 3
