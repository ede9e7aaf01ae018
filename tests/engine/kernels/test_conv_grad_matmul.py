"""Gradients of convolutions in sections without XLA: TensorFlow's numbers, by matrix products."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.passes import leaving_out
from tests.oracle import assert_all_close, gradient_step, loss_step, numbers, sum_of_sines

KERNEL = {"Conv2DBackpropFilter"}
GRADIENTS = {"Conv2DBackpropInput", *KERNEL}


def convolved(strides=1, padding="SAME", dilations=1):
    return lambda x, w: tf.nn.conv2d(x, w, strides, padding, dilations=dilations)


# What is convolved, the shapes of image and kernel, and the gradients that are TensorFlow's still.


def padded(strides, rows, columns):
    """Return a convolution that pads an image by numbers of ``rows`` and ``columns``."""
    return convolved(strides, [[0, 0], rows, columns, [0, 0]])


CASES = {
    "1x1": (convolved(), (2, 9, 8, 5), (1, 1, 5, 7), set()),
    "1x1 on many places": (convolved(), (3, 20, 21, 5), (1, 1, 5, 7), set()),
    "1x1 of stride 2, even": (convolved(2), (2, 8, 6, 5), (1, 1, 5, 7), set()),
    "1x1 of stride 2, odd": (convolved(2), (2, 9, 7, 5), (1, 1, 5, 7), set()),
    "1x1 of stride 2, even and odd": (convolved(2, "VALID"), (2, 9, 8, 5), (1, 1, 5, 7), set()),
    "1x1 of strides 3 and 1": (convolved((3, 1)), (2, 10, 7, 5), (1, 1, 5, 7), set()),
    "1x1, padded": (padded(1, [1, 0], [0, 2]), (2, 3, 3, 5), (1, 1, 5, 7), KERNEL),
    "3x3 on one place": (convolved(), (3, 1, 1, 5), (3, 3, 5, 7), set()),
    "3x3 on 2 x 2": (convolved(), (3, 2, 2, 5), (3, 3, 5, 7), set()),
    "3x3 on 2 x 2, a large batch": (convolved(), (50, 2, 2, 5), (3, 3, 5, 7), set()),
    "3x3 on 4 x 3": (convolved(), (3, 4, 3, 5), (3, 3, 5, 7), set()),
    "3x3 on 8 x 8": (convolved(), (3, 8, 8, 5), (3, 3, 5, 7), KERNEL),
    "3x3 on 9 x 10": (convolved(), (3, 9, 10, 5), (3, 3, 5, 7), KERNEL),
    "3x3, valid": (convolved(1, "VALID"), (3, 5, 4, 5), (3, 3, 5, 7), set()),
    "3x3 on 12 x 10, valid": (convolved(1, "VALID"), (3, 12, 10, 5), (3, 3, 5, 7), KERNEL),
    "4x2, even sides": (convolved(), (3, 5, 4, 5), (4, 2, 5, 7), KERNEL),
    "4x2 on 12 x 10": (convolved(), (3, 12, 10, 5), (4, 2, 5, 7), KERNEL),
    "3x3 of stride 2, even": (convolved(2), (3, 8, 6, 5), (3, 3, 5, 7), set()),
    "3x3 of stride 2, odd": (convolved(2), (3, 7, 5, 5), (3, 3, 5, 7), set()),
    "3x3 of stride 2, valid": (convolved(2, "VALID"), (3, 8, 8, 5), (3, 3, 5, 7), set()),
    "3x3 of stride 2 on 12 x 10": (convolved(2), (3, 12, 10, 5), (3, 3, 5, 7), GRADIENTS),
    "rows that no step reads": (convolved(3, "VALID"), (2, 8, 8, 5), (2, 2, 5, 7), set()),
    "strides beyond the kernel": (convolved(4), (2, 8, 8, 5), (2, 3, 5, 7), set()),
    "patches": (convolved(4, "VALID"), (2, 8, 8, 5), (4, 4, 5, 7), set()),
    "padded by hand": (padded(1, [1, 0], [0, 2]), (2, 4, 4, 5), (3, 2, 5, 7), set()),
    "padded by hand, on 9 x 9": (padded(1, [1, 0], [0, 1]), (2, 9, 9, 5), (3, 2, 5, 7), KERNEL),
    "padded by more than 3": (padded(2, [3, 0], [0, 4]), (2, 4, 4, 5), (3, 2, 5, 7), set()),
    "the same, without strides": (padded(1, [3, 0], [0, 4]), (2, 9, 9, 5), (3, 2, 5, 7), GRADIENTS),
}  # fmt: skip


def traced(function, *arguments):
    """Return the compiled step of a function of image and kernel, and the types of the operations
    in its graph.
    """
    step = loss_step(function, of_inputs=True, loss=sum_of_sines)
    made = tf.function(step, autograph=False).get_concrete_function(*arguments)
    return made, {operation.type for operation in made.graph.get_operations()}


def given(name, dtype=np.float64):
    function, *shapes, remaining = CASES[name]
    x, w = (tf.constant(numbers(*shape, seed=n).astype(dtype)) for n, shape in enumerate(shapes))
    return (lambda x, w: function(tf.sin(x), w)), x, w, remaining


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    function, x, w, remaining = given(name)
    (ours, kinds), (plain, _) = traced(checkpoint(function), x, w), traced(function, x, w)
    assert_all_close(ours(x, w), plain(x, w), rtol=1e-12, atol=1e-12)
    assert kinds & GRADIENTS == remaining


def test_left_out_they_are_tensorflow_s():
    function, x, w, _ = given("3x3 on 2 x 2")
    with leaving_out("conv_grad_matmul"):
        _, kinds = traced(checkpoint(function), x, w)
    assert kinds >= GRADIENTS


@pytest.mark.parametrize("name", ["1x1 of stride 2, even", "3x3 on 4 x 3", "3x3 on 9 x 10"])
def test_a_batch_that_is_not_known(name):
    function, x, w, remaining = given(name)
    signature = tf.TensorSpec((None, *x.shape[1:]), x.dtype), tf.TensorSpec(w.shape, w.dtype)
    (ours, kinds), (plain, _) = (
        traced(checkpoint(function), *signature),
        traced(function, *signature),
    )
    assert_all_close(ours(x, w), plain(x, w), rtol=1e-12, atol=1e-12)
    assert kinds & GRADIENTS == remaining


def test_what_works_in_halves_stays():
    function, x, w, _ = given("3x3 on 2 x 2", np.float16)
    _, kinds = traced(checkpoint(function), x, w)
    assert kinds >= GRADIENTS


def test_second_derivatives():
    function, x, w, _ = given("3x3 of stride 2, odd")

    def twice(function):
        def first(x, w):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = tf.reduce_sum(function(x, w) ** 3)
            return tape.gradient(value, x)

        return first

    (ours, _), (plain, _) = traced(twice(checkpoint(function)), x, w), traced(twice(function), x, w)
    assert_all_close(ours(x, w), plain(x, w), rtol=1e-11, atol=1e-11)


def test_behind_the_last_checkpoint_too():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((4, 4, 3), batch_size=2)
    for number in range(3):
        x = keras.layers.Conv2D(
            3, 3, padding="same", activation="tanh", name=f"convolution_{number}"
        )(x)
    plain = keras.Model(inputs, x)
    ours = kr.checkpointed(plain, at=["convolution_0"])
    images, weights = tf.constant(numbers(2, 4, 4, 3)), [v.value for v in plain.trainable_variables]

    def step(model):
        run = gradient_step(model, weights=weights)
        return tf.function(run, autograph=False).get_concrete_function(images)

    mine, wanted = step(ours), step(plain)
    assert not GRADIENTS & {operation.type for operation in mine.graph.get_operations()}
    assert {operation.type for operation in wanted.graph.get_operations()} >= GRADIENTS
    assert_all_close(mine(images), wanted(images), rtol=1e-5, atol=1e-5)
