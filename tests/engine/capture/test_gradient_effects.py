"""Gradients that do more than compute: they print, assign variables, and read others."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from tests.oracle import numbers

X = numbers(3, 4)
MODES = pytest.mark.parametrize("mode", ["eagerly", "function", "jit"])


def with_gradient(gradient):
    """Return the identity with ``gradient(x, dy)`` as its gradient."""

    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), lambda dy: gradient(x, dy)

    return identity


def gradient_of(function, mode="eagerly"):
    """Return a function that computes the gradient of the sum of ``function``'s result."""

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(function(x))
        return tape.gradient(y, x)

    if mode == "eagerly":
        return gradient
    return tf.function(gradient, jit_compile=mode == "jit", autograph=False)


def run(function, mode, variables=()):
    """Return the gradient of ``function``'s squares at X, and the ``variables``, all 1 before."""
    for variable in variables:
        variable.assign(tf.ones_like(variable))
    gradient = gradient_of(lambda x: function(x) ** 2, mode)(tf.constant(X))
    return [gradient.numpy(), *(variable.numpy() for variable in variables)]


def assert_as_plain(function, mode, variables=()):
    plain = run(function, mode, variables)
    for ours, theirs in zip(run(kr.checkpoint(function), mode, variables), plain):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    return plain


@MODES
def test_a_gradient_reads_a_variable_that_the_forward_pass_does_not(mode):
    strength = tf.Variable(1.0, trainable=False)
    reverse = with_gradient(lambda _, dy: -strength * dy)
    gradient = gradient_of(kr.checkpoint(lambda x: reverse(tf.exp(x))), mode)
    for value in (0.5, 2.0):
        strength.assign(value)
        np.testing.assert_allclose(gradient(tf.constant(X)), -value * np.exp(X), rtol=1e-6)


@MODES
def test_a_gradient_reads_a_large_tensor_from_outside(mode):
    # 256 elements: TensorFlow makes smaller ones constants.
    large = tf.constant(numbers(64, 4))
    scale = with_gradient(lambda _, dy: tf.reduce_sum(large) * dy)
    assert_as_plain(lambda x: scale(tf.exp(x)), mode)


@MODES
def test_assignments_happen_once_and_in_order(mode):
    v = tf.Variable(1.0)

    def assign(_, dy):
        v.assign(v * 2.0 + 1.0)
        v.assign(v * 3.0)
        v.assign(v - 1.0)
        return dy * v

    function = with_gradient(assign)
    _, left = assert_as_plain(lambda x: function(tf.exp(x)), mode, [v])
    assert left == 8.0  # (1 * 2 + 1) * 3 - 1


@MODES
def test_an_assignment_that_could_run_early_waits_for_the_one_before(mode):
    v = tf.Variable(1.0)

    def assign(x, dy):
        v.assign(tf.reduce_sum(tf.linalg.matmul(tf.sin(dy), x, transpose_b=True)))
        v.assign(5.0)
        return dy

    function = with_gradient(assign)
    _, left = assert_as_plain(lambda x: function(tf.exp(x)), mode, [v])
    assert left == 5.0


@MODES
def test_an_assignment_reads_the_number_that_was_drawn(mode):
    drawn, seen = tf.Variable(1.0), tf.Variable(1.0)

    def function(x):
        number = tf.random.uniform([])
        drawn.assign(number)

        def see(_, dy):
            seen.assign(number)
            return dy

        return with_gradient(see)(tf.exp(x))

    _, of_forward, of_backward = run(kr.checkpoint(function), mode, [drawn, seen])
    assert 0.0 < of_forward < 1.0
    assert of_backward == of_forward


@MODES
def test_what_only_an_assignment_reads_is_computed_for_it(mode):
    v = tf.Variable(1.0)

    def keep(x, dy):
        v.assign(tf.reduce_mean(x) * tf.reduce_sum(dy))
        return dy

    function = with_gradient(keep)
    assert_as_plain(lambda x: function(tf.exp(tf.sin(x))), mode, [v])


@MODES
def test_a_variable_that_the_forward_pass_reads_is_assigned(mode):
    v = tf.Variable(1.0)

    def count(_, dy):
        v.assign_add(1.0)
        return dy * v

    function = with_gradient(count)
    _, left = assert_as_plain(lambda x: function(tf.sin(x)) * v, mode, [v])
    assert left == 2.0


@MODES
@pytest.mark.parametrize("asked", [[0], [1], [0, 2], [0, 1, 2]], ids=str)
def test_only_gradients_of_outputs_that_are_asked_for_assign(asked, mode):
    v = tf.Variable(1.0)

    def count(_, dy):
        v.assign_add(1.0)
        return dy * v

    counting = with_gradient(count)

    def of_asked(function):
        def total(x):
            results = function(x)
            return sum(results[number] for number in asked)

        return run(total, mode, [v])

    def function(x):
        return counting(tf.sin(x)) * v, tf.cos(x) * v, counting(x * x)

    plain = of_asked(function)
    for ours, theirs in zip(of_asked(kr.checkpoint(function)), plain):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert plain[-1] == 1.0 + sum(number != 1 for number in asked)


@MODES
def test_a_second_derivative_counts_as_the_plain_one_does(mode):
    n = tf.Variable(1.0)

    def count(_, dy):
        n.assign_add(1.0)
        return dy

    function = with_gradient(count)

    def second_order(wrap):
        inner = wrap(lambda x: function(tf.sin(x * x)))
        return run(gradient_of(lambda x: inner(x) ** 2), mode, [n])

    for ours, theirs in zip(second_order(kr.checkpoint), second_order(lambda f: f)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("mode", ["eagerly", "function"])
def test_a_gradient_prints_once(mode, capfd):
    def say(_, dy):
        tf.print("printed by the gradient")
        return dy

    function = with_gradient(say)
    run(kr.checkpoint(lambda x: function(tf.exp(x))), mode)
    assert capfd.readouterr().err.count("printed by the gradient") == 1


class Counting(keras.layers.Layer):
    """Counts its gradients."""

    def __init__(self, count, **kwargs):
        super().__init__(**kwargs)
        self.identity = with_gradient(lambda _, dy: (count.assign_add(1.0), dy)[1])

    def call(self, x):
        return self.identity(x)


@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.long(every_case=True))]
)
def test_a_model_counts_what_the_plain_one_counts(jit):
    n = tf.Variable(0.0)

    def trained(make):
        keras.utils.set_random_seed(1)
        inputs = h = keras.Input((4,))
        for _ in range(6):
            h = Counting(n)(keras.layers.Dense(4, "tanh")(h))
        model = make(keras.Model(inputs, h))
        model.compile("sgd", "mse", jit_compile=jit)
        n.assign(0.0)
        losses = model.fit(X, X, epochs=3, verbose=0).history["loss"]
        return losses, float(n)

    losses, counted = trained(lambda model: model)
    assert counted == 3 * 6  # epochs and layers
    ours, counted_by_ours = trained(lambda model: kr.checkpointed(model, every=4))
    np.testing.assert_allclose(ours, losses, rtol=1e-6)
    assert counted_by_ours == counted
