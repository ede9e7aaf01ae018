"""Back-propagation goes on once a layer's own gradients are there: the peak of the compiled
program, and the same values.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.liveness import profile
from tests.oracle import gradient_step, numbers

WIDTH, BATCH, DEPTH = 16, 4096, 8
STATE = 4 * WIDTH * BATCH  # bytes of the activation of one layer: 256 KiB. Its weights have 1 KiB.


def weights(count: int = DEPTH) -> list[tf.Variable]:
    return [tf.Variable(numbers(WIDTH, WIDTH, seed=i) * 0.3) for i in range(count)]


def chain(w, x):
    for matrix in w:
        x = tf.tanh(x @ matrix)
    return x


def branches(w, x):
    """Two ways that meet twice, the second longer than the first."""
    for i in range(0, len(w), 4):
        x = tf.tanh(x @ w[i]) + tf.tanh(tf.sin(tf.tanh(x @ w[i + 1]) @ w[i + 2]) @ w[i + 3])
    return x


def shared(w, x):
    """Each matrix in three places, so that its gradient is a sum of three."""
    return chain(w[:3] * 3, x)


def towers(w, x):
    """Two chains with nothing in common but the input and the sum of their results."""
    half = len(w) // 2
    return chain(w[:half], x) + chain(w[half:], x)


def widening(w, x):
    """A layer of one unit at the end, and one in the middle."""
    return tf.reduce_sum(chain(w, x) * tf.tanh(x @ w[0][:, :1]), axis=1, keepdims=True)


SHAPES = [chain, branches, shared, towers, widening]


def gradients_of(function, w):
    return gradient_step(functools.partial(function, w), weights=w, unconnected="zero")


def test_the_gradients_of_the_weights_do_not_wait_for_those_of_all_activations():
    w = weights()

    def checkpointed(w, x):
        inner = kr.checkpoint(lambda x: chain(w, x))(x)
        return tf.tanh(inner)  # the section is not the last: its result is kept

    program = profile(gradients_of(checkpointed, w), tf.TensorSpec((BATCH, WIDTH)))
    states = program.not_always_live_peak_bytes / STATE
    # All states of the section, the result's gradient, and what one layer's gradient needs: twice
    # the product's operands. Gradients of weights that come last would need two for each layer: 16
    # and more.
    assert DEPTH <= states <= DEPTH + 4


@pytest.mark.parametrize("function", SHAPES, ids=lambda function: function.__name__)
def test_the_order_changes_no_gradient(function):
    w, x = weights(), tf.constant(numbers(32, WIDTH, seed=99))
    expected = tf.function(gradients_of(function, w), autograph=False)(x)
    inside = gradients_of(lambda w, x: kr.checkpoint(lambda x: function(w, x))(x), w)
    found = tf.function(inside, jit_compile=True, autograph=False)(x)
    for number, (ours, plain) in enumerate(zip(found, expected)):
        scale = np.abs(plain).max() or 1.0
        np.testing.assert_allclose(
            ours / scale, plain / scale, rtol=0, atol=2e-6, err_msg=f"weights {number}"
        )


@pytest.mark.long
@pytest.mark.parametrize("function", SHAPES, ids=lambda function: function.__name__)
def test_derivatives_of_ordered_gradients(function):
    """The second derivative goes through the ties as if they were not there."""
    w, x = weights(), tf.constant(numbers(4, WIDTH, seed=99))

    def twice(run):
        def step(x):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.reduce_sum(run(x) ** 2)
                slope = tf.reduce_sum(inner.gradient(y, x) ** 2)
            return outer.gradient(slope, [x, *w], unconnected_gradients="zero")

        return step

    expected = tf.function(twice(lambda x: function(w, x)), autograph=False)(x)
    section = kr.checkpoint(lambda x: function(w, x))
    found = tf.function(twice(section), jit_compile=True, autograph=False)(x)
    for number, (ours, plain) in enumerate(zip(found, expected)):
        scale = np.abs(plain).max() or 1.0
        np.testing.assert_allclose(
            ours / scale, plain / scale, rtol=0, atol=5e-6, err_msg=f"derivative {number}"
        )
