"""Operations without a gradient in front of others that have one."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.layers.recomputation_checkpoint import RecomputationCheckpoint
from keras_recompute.models.classes.model import Model
from tests.oracle import assert_all_close, gradient_step, loss_and_gradients

X = tf.random.stateless_uniform((2, 4, 4, 3), (0, 1))
weight = tf.Variable([0.5, 1.0, 2.0])
MODES = pytest.mark.parametrize(
    "decorate", [lambda f: f, lambda f: tf.function(f, autograph=False)], ids=["eager", "graph"]
)


def augmented(x):
    return tf.exp(tf.sin(tf.image.adjust_contrast(x, 2.0) * weight))


def augmented_in_a_function(x):
    return tf.exp(tf.sin(tf.function(lambda x: tf.image.adjust_contrast(x, 2.0))(x) * weight))


def augmented_in_a_branch(x):
    brighter = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.image.adjust_contrast(x, 2.0), lambda: x)
    return tf.exp(tf.sin(brighter * weight))


FUNCTIONS = pytest.mark.parametrize(
    "function", [augmented, augmented_in_a_function, augmented_in_a_branch]
)


@MODES
@FUNCTIONS
def test_forward_only(decorate, function):
    np.testing.assert_allclose(decorate(checkpoint(function))(X), function(X), rtol=1e-6)


@FUNCTIONS
def test_the_gradient_of_what_lies_behind(function):
    options = {"weights": [weight], "loss": tf.identity}
    wanted = loss_and_gradients(function, X, mode="eager", **options)
    for mode in ("eager", "graph"):
        found = loss_and_gradients(checkpoint(function), X, mode=mode, **options)
        assert_all_close(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("batch", [2, 40], ids=["small", "large"])
def test_a_gradient_of_what_the_function_closed_over_is_an_error(batch):
    """A small tensor is a constant of the traced function, through which TensorFlow leads gradients
    all the same.
    """
    images = tf.random.stateless_uniform((batch, 3, 3, 3), (0, 1))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(images)
        darker = images / 2.0

        def function(x):
            return tf.exp(tf.sin(x * tf.image.adjust_contrast(darker, 2.0)))

        with pytest.raises(LookupError, match="AdjustContrastv2"):
            tape.gradient(checkpoint(function)(images), images)
    np.testing.assert_allclose(checkpoint(function)(images), function(images), rtol=1e-6)


def test_a_gradient_of_what_lies_in_front_is_an_error():
    wrapped = checkpoint(augmented)

    run = gradient_step(wrapped, of_inputs=True, loss=tf.identity)

    def symbolic(x):
        return tf.gradients(wrapped(x), x)

    wrapped(X)  # first without a tape, for which nothing is asked
    for ask in (run, tf.function(run, autograph=False), tf.function(symbolic, autograph=False)):
        with pytest.raises(
            LookupError, match=r"No gradient defined for operation.*AdjustContrastv2"
        ):
            ask(X)


def test_gradients_of_other_arguments_and_of_symbolic_ones():
    def two(x, y):
        return augmented(x) * tf.sin(y)

    y = tf.constant([1.0, 2.0, 3.0])

    def symbolic(function):
        return tf.gradients(function(X, y), [y, weight])

    wanted = tf.function(lambda: symbolic(two), autograph=False)()
    found = tf.function(lambda: symbolic(checkpoint(two)), autograph=False)()
    assert_all_close(found, wanted, rtol=1e-5)


class Augment(keras.layers.Layer):
    def call(self, x):
        return tf.image.adjust_contrast(x, 2.0)

    def compute_output_shape(self, shape):
        return shape


def network(kind):
    inputs = keras.Input((4, 4, 3))
    x = keras.layers.Dense(3, activation="gelu", name="front")(Augment()(inputs))
    x = RecomputationCheckpoint()(x) if kind is Model else x
    return kind(inputs, keras.layers.Dense(1, name="head")(x))


def test_a_model_that_augments_in_its_first_section():
    plain, ours = network(keras.Model), network(Model)
    ours.set_weights(plain.get_weights())

    found, wanted = (
        loss_and_gradients(model, X, mode="eager", loss=tf.identity) for model in (ours, plain)
    )
    assert_all_close(found, wanted, rtol=1e-4, atol=1e-6)
    for model in (plain, ours):
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        model.fit(X, np.ones((2, 4, 4, 1)), verbose=0, epochs=2)
    assert_all_close(ours.get_weights(), plain.get_weights(), rtol=1e-4, atol=1e-6)


def test_a_second_derivative_that_nobody_defined():
    @tf.custom_gradient
    def once(x):
        def gradient(dy):
            return tf.image.adjust_contrast(dy, 2.0)

        return tf.sin(tf.exp(x)), gradient

    for function in (once, checkpoint(lambda x: tf.exp(once(tf.exp(x))))):
        first = gradient_step(lambda x: tf.exp(function(tf.sin(x))), of_inputs=True)  # noqa: B023
        with pytest.raises(LookupError, match="AdjustContrastv2"):
            loss_and_gradients(lambda x: first(x)[0], X, mode="eager", of_inputs=True)  # noqa: B023
