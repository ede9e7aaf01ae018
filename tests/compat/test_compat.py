"""The call styles of the other libraries do what their documentation says, and more."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.compat import checkpointable, gradient_checkpoint_scope, recompute_grad
from keras_recompute.engine.frontend.checkpoint import Checkpointed, checkpoint
from keras_recompute.engine.inspection import saved_residuals
from keras_recompute.engine.policies import save_everything
from keras_recompute.liveness import profile
from tests.oracle import assert_all_close

X = np.linspace(0.0, 1.0, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_checkpointable_is_off_unless_asked_for(dtype):
    traced = []
    # Not by name of the list: a change of that is a side effect, which is noticed
    note = traced.append

    @checkpointable
    def f(x, some_str, some_bool, nest, z=None):
        """Their docstring."""
        note(tf.executing_eagerly())
        assert (some_str, some_bool) == ("a", True)
        return tf.exp(tf.sin(x * z)) * nest[0]["w"][1]

    x = tf.cast(X, dtype)
    nest = [{"w": (None, tf.cast(2.0, dtype))}]
    found = []
    for extra in (
        {},
        {"_checkpoint": False},
        {"_checkpoint": True, "_watch_vars": [], "_force_seed": True},
    ):
        with tf.GradientTape() as tape:
            tape.watch([x, nest[0]["w"][1]])
            y = f(x, "a", True, nest, z=x, **extra)
        found.append([y, *tape.gradient(y, [x, nest[0]["w"][1]])])
    assert traced == [True, True, False]
    assert f.__doc__ == "Their docstring."
    for plain, ours in zip(found[0], found[2]):
        np.testing.assert_array_equal(plain, ours)


def test_checkpointable_takes_a_layer():
    layer = keras.layers.Dense(3, "gelu")
    wrapped = checkpointable(layer)
    with tf.GradientTape() as tape:
        y = wrapped(X, _checkpoint=True, _watch_vars=layer.trainable_variables)
    assert all(g is not None for g in tape.gradient(y, layer.trainable_variables))
    assert len(layer.trainable_variables) == 2


def test_recompute_grad_is_checkpoint():
    w = tf.Variable(2.0)

    def f(x, *, power=1):
        return tf.exp(tf.sin(x * w)) ** power

    g = recompute_grad(f)
    assert isinstance(g, Checkpointed)
    assert g.__wrapped__ is f
    with tf.GradientTape(persistent=True) as tape:
        r = s = tf.constant(X)
        for _ in range(4):
            r, s = g(r, power=2), f(s, power=2)
    np.testing.assert_allclose(tape.gradient(r, w), tape.gradient(s, w), rtol=1e-5)


def test_recompute_grad_takes_integers_and_loops_with_variables():
    w = tf.Variable(X)

    def f(indices):
        rows = tf.gather(w, indices)
        return tf.while_loop(
            lambda i, _: i < 3,
            lambda i, y: (i + 1, tf.sin(y * w[0])),
            (0, rows),
            maximum_iterations=3,
        )[1]

    with tf.GradientTape(persistent=True) as tape:
        ours, plain = recompute_grad(f)(np.array([0, 2, 2])), f(np.array([0, 2, 2]))
    dense = [tf.convert_to_tensor(tape.gradient(y, w)) for y in (ours, plain)]
    np.testing.assert_allclose(*dense, rtol=1e-6)


def test_the_scope_under_its_other_name():
    def function(a, b, c):
        with gradient_checkpoint_scope():
            x = a + b
        return x * c

    rows = saved_residuals(checkpoint(function, policy=save_everything), X, X, X)
    assert [row.origin for row in rows] == ["a", "b", "c"]


@pytest.mark.long
def test_forty_thousand_layers_in_the_memory_of_four_hundred():
    """200 calls of 200 layers each, recomputed, against 400 layers kept; by the compiler's own
    account.

    Kept of one layer is one vector (what the sine is taken of), so 400 vectors; recomputed, 200
    between the calls and 200 inside the one that is replayed. The layers stand in loops, which
    compile in a second; the example's own are linear in x, so that nothing would be kept of them at
    all.
    """
    size = 10_000
    x, y, z = (tf.ones((size,)) for _ in range(3))

    def f(x, y, some_str, some_bool, z=None, layers=200):
        del some_str, some_bool
        body = lambda i, x: (i + 1, x + tf.sin(x * y * z))  # noqa: E731
        return tf.while_loop(lambda i, _: i < layers, body, (0, x), maximum_iterations=layers)[1]

    def compiled(section, *, calls, layers):
        def step(x, y, z):
            with tf.GradientTape() as tape:
                tape.watch(x)
                out = tf.while_loop(
                    lambda i, _: i < calls,
                    lambda i, x: (i + 1, section(x, y, "a", True, z=z, layers=layers)),
                    (0, x),
                    maximum_iterations=calls,
                )[1]
                loss = tf.reduce_sum(out)
            return tape.gradient(loss, x)

        return profile(step, x, y, z).not_always_live_peak_bytes

    vector = 4 * size
    kept = compiled(f, calls=1, layers=400)
    ours = compiled(functools.partial(checkpointable(f), _checkpoint=True), calls=200, layers=200)
    assert 400 * vector <= kept <= 410 * vector
    assert ours <= 1.1 * kept
    assert compiled(f, calls=200, layers=200) >= 40_000 * vector


def test_a_checkpoint_in_a_loop_has_the_gradients_of_the_plain_loop():
    def step(section):
        @tf.function(autograph=False)
        def run(x, w):
            with tf.GradientTape() as tape:
                tape.watch([x, w])
                body = lambda i, y: (i + 1, section(y, w))  # noqa: E731
                y = tf.while_loop(lambda i, _: i < 5, body, (0, x), maximum_iterations=5)[1]
            return tape.gradient(y, [x, w])

        return run(
            tf.constant(X), tf.constant(np.cos(np.arange(16, dtype=np.float32)).reshape(4, 4))
        )

    def section(y, w):
        return tf.sin(tf.exp(y) @ w)

    assert_all_close(step(recompute_grad(section)), step(section), rtol=1e-6)
