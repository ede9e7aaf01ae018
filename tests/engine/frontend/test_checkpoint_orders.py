"""Every way to differentiate in reverse, nested as one likes, to third order, against the plain
function.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.policies import save_everything, save_nothing
from keras_recompute.errors import UnsupportedError
from tests.oracle import assert_all_close, in_mode, numbers

MODES = pytest.mark.parametrize(
    "mode", ["eager", "graph", pytest.param("jit", marks=pytest.mark.long)]
)
X = np.linspace(0.2, 1.4, 5, dtype=np.float32)


def derivatives(function, order, *, symbolic=False):
    """Return the function that returns ``function``'s value and its derivatives up to ``order``."""

    def with_tapes(x):
        if order == 0:
            return [function(x)]
        with tf.GradientTape() as tape:
            tape.watch(x)
            lower = derivatives(function, order - 1)(x)
        return [*lower, tape.gradient(lower[-1], x)]

    def with_tf_gradients(x):
        found = [function(x)]
        for _ in range(order):
            found += tf.gradients(found[-1], x)
        return found

    return with_tf_gradients if symbolic else with_tapes


v = tf.Variable(1.3)


def smooth(x):
    return tf.sin(x * v) ** 3 * tf.exp(x) + tf.reduce_sum(tf.cos(x)) * x


def looped(x):
    return tf.while_loop(
        lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y) * x), (0, x), maximum_iterations=3
    )[1]


@tf.custom_gradient
def cubed(x):
    """A gradient that a user wrote as a closure over a tensor of the graph it is called in."""
    squared = x * x
    return squared * x, lambda dy: 3.0 * squared * dy


def closure(x):
    return tf.exp(tf.sin(cubed(x)))


@functools.lru_cache(maxsize=None)
def plain_derivatives(function):
    """Return value and three derivatives of the plain function."""
    return in_mode("graph", derivatives(function, 3))(tf.constant(X))


def assert_three_orders(found, function):
    for order, (a, b) in enumerate(zip(found, plain_derivatives(function), strict=True)):
        np.testing.assert_allclose(
            a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max(), err_msg=f"order {order}"
        )


@pytest.mark.parametrize(
    ("policy", "mode"),
    [
        *(pytest.param(save_nothing, mode, marks=pytest.mark.long) for mode in ("eager", "jit")),
        (save_nothing, "graph"),
        (save_everything, "graph"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "function", [smooth, pytest.param(looped, marks=pytest.mark.long), closure]
)
def test_three_orders_with_tapes(function, policy, mode):
    assert_three_orders(
        in_mode(mode, derivatives(checkpoint(function, policy=policy), 3))(tf.constant(X)), function
    )


@pytest.mark.parametrize("mode", ["graph", pytest.param("jit", marks=pytest.mark.long)])
@pytest.mark.parametrize("function", [smooth, closure])
def test_three_orders_with_tf_gradients(function, mode):
    assert_three_orders(
        in_mode(mode, derivatives(checkpoint(function), 3, symbolic=True))(tf.constant(X)), function
    )


@MODES
def test_second_order_with_nested_checkpoints(mode):
    inner = checkpoint(lambda x: tf.exp(tf.sin(x)))
    nested = checkpoint(lambda x: tf.sin(inner(tf.sin(inner(x)))))
    plain = lambda x: tf.sin(inner.__wrapped__(tf.sin(inner.__wrapped__(x))))  # noqa: E731
    ours = in_mode(mode, derivatives(nested, 2))(tf.constant(X))
    for a, b in zip(ours, in_mode(mode, derivatives(plain, 2))(tf.constant(X))):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


@MODES
def test_second_order_reaches_variables(mode):
    """d/dv of the norm of d/dx, as a gradient penalty has it: computed by hand for sin(v x)."""
    section = checkpoint(lambda x: tf.sin(v * x))

    def penalty(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = section(x)
            loss = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(loss, v)

    # sum (v cos(v x))^2, differentiated by v
    a = 1.3
    expected = np.sum(2 * a * np.cos(a * X) * (np.cos(a * X) - a * X * np.sin(a * X)))
    np.testing.assert_allclose(in_mode(mode, penalty)(tf.constant(X)), expected, rtol=1e-5)


@MODES
def test_second_order_with_dropout_uses_the_one_mask(mode):
    drop = keras.layers.Dropout(0.5, seed=4)
    section = checkpoint(lambda x: tf.exp(drop(tf.sin(x), training=True)))
    y, first, second = in_mode(mode, derivatives(section, 2))(tf.constant(numbers(8, 8)))
    mask = (np.asarray(y) != 1.0).astype(np.float32) * 2
    assert 0 < np.count_nonzero(mask) < mask.size
    x = numbers(8, 8)
    np.testing.assert_allclose(first, y * mask * np.cos(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        second, y * ((mask * np.cos(x)) ** 2 - mask * np.sin(x)), rtol=1e-4, atol=1e-5
    )


@MODES
def test_one_persistent_tape_serves_many_gradients(mode):
    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x
            for _ in range(3):
                y = section(y)
            z = section(y)
        return tape.gradient(y, x), tape.gradient(z, x), tape.gradient(z, y), tape.gradient(y, x)

    section = checkpoint(smooth)
    ours = in_mode(mode, step)(tf.constant(X))
    section = smooth
    assert_all_close(ours, in_mode("graph", step)(tf.constant(X)), rtol=1e-5)


@MODES
def test_jacobian_and_gradient_inside_a_checkpoint(mode):
    def with_tape_inside(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.exp(tf.sin(x))
        return tape.gradient(y, x) * x

    ours = in_mode(mode, derivatives(checkpoint(with_tape_inside), 1))(tf.constant(X))
    assert_all_close(
        ours, in_mode(mode, derivatives(with_tape_inside, 1))(tf.constant(X)), rtol=1e-5
    )


def test_a_batch_jacobian():
    section = checkpoint(lambda x: tf.exp(tf.sin(x) @ tf.constant(numbers(5, 3))))
    x = tf.constant(numbers(4, 5, seed=2))
    found = []
    for function in (section, section.__wrapped__):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = function(x)
        found.append(tape.batch_jacobian(y, x, experimental_use_pfor=False))
    np.testing.assert_allclose(*found, rtol=1e-5)


@MODES
def test_forward_mode_follows_the_function_itself(mode):
    w = tf.Variable(X)

    def tangents(wrap, primal):
        value = tf.convert_to_tensor(primal)
        watched = w if primal is w else value
        with tf.autodiff.ForwardAccumulator(
            watched, tf.ones_like(value)
        ) as accumulator, tf.GradientTape() as tape:
            tape.watch(value)
            y = wrap(lambda x: tf.exp(tf.sin(x)) * w)(value)
            slope = tape.gradient(y, value)
        return accumulator.jvp(y), accumulator.jvp(slope)

    for primal in (X, w):
        found, expected = (
            in_mode(mode, functools.partial(tangents, wrap, primal))()
            for wrap in (checkpoint, lambda f: f)
        )
        assert_all_close(found, expected, rtol=1e-5)


def test_what_a_third_tape_would_have_to_draw_again_is_refused():
    """The gradient itself is random: its derivative would need the same numbers once more."""

    @tf.custom_gradient
    def noisy(x):
        return tf.exp(x), lambda dy: dy * x * tf.random.uniform(x.shape)

    section = checkpoint(noisy, policy=save_everything)
    assert derivatives(section, 1)(tf.constant(X))[1] is not None
    with pytest.raises(UnsupportedError, match="RandomUniform"):
        derivatives(section, 2)(tf.constant(X))
