"""Convolutions in sections under XLA on a CPU: the numbers of TensorFlow's, in the form for which
there is a fast kernel.
"""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.passes import leaving_out
from tests.oracle import assert_all_close, loss_step, numbers, sum_of_sines


def step_of(function, *, jit):
    """Return the function of image and kernel that returns a loss's value and gradients."""

    step = loss_step(function, of_inputs=True, loss=sum_of_sines)
    return tf.function(step, jit_compile=jit, autograph=False)


def two(strides=1, padding="SAME", dilations=1):
    return lambda x, w: tf.nn.conv2d(x, w, strides, padding, dilations=dilations)


def depthwise(strides=1, padding="SAME"):
    return lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, strides, strides, 1], padding)


def transposed(strides, shape):
    return lambda x, w: tf.nn.conv2d_transpose(x, w, shape, strides)


def channels_first(make, strides):
    if make is depthwise:
        return lambda x, w: tf.nn.depthwise_conv2d(
            x, w, [1, 1, strides, strides], "SAME", data_format="NCHW"
        )
    return lambda x, w: tf.nn.conv2d(x, w, strides, "SAME", data_format="NCHW")


def separable(x, w):
    pointwise = tf.constant(numbers(1, 1, 4, 6, seed=9).astype(x.dtype.as_numpy_dtype))
    return tf.nn.separable_conv2d(x, w, pointwise, [1, 1, 1, 1], "SAME")


IMAGE = (2, 8, 7, 4)
CASES = {
    "3x3": (two(), IMAGE, (3, 3, 4, 6)),
    "1x1": (two(), IMAGE, (1, 1, 4, 6)),
    "1x1 of stride 2": (two(2), IMAGE, (1, 1, 4, 6)),
    "3x3 of stride 2": (two(2), IMAGE, (3, 3, 4, 6)),
    "3x2 of strides 3 and 1, valid": (two((3, 1), "VALID"), IMAGE, (3, 2, 4, 6)),
    "rows that no step reads": (two(3, "VALID"), (2, 9, 9, 4), (2, 2, 4, 6)),
    "dilated": (two(dilations=2), IMAGE, (3, 3, 4, 6)),
    "dilated, valid": (two(padding="VALID", dilations=(2, 3)), IMAGE, (2, 2, 4, 6)),
    "padded by hand": (two(1, [[0, 0], [1, 0], [0, 2], [0, 0]]), IMAGE, (3, 2, 4, 6)),
    "in groups": (two(2), IMAGE, (3, 3, 2, 6)),
    "in a group for each feature": (two(2), IMAGE, (3, 3, 1, 4)),
    "in a group for each feature, of two results": (two(1), IMAGE, (3, 3, 1, 8)),
    "depthwise": (depthwise(), IMAGE, (3, 3, 4, 1)),
    "depthwise of stride 2": (depthwise(2, "VALID"), IMAGE, (3, 3, 4, 2)),
    "separable": (separable, IMAGE, (3, 3, 4, 1)),
    "transposed": (transposed(2, (2, 16, 14, 6)), IMAGE, (3, 3, 6, 4)),
    "channels first": (channels_first(two, 2), (2, 4, 8, 7), (3, 3, 4, 6)),
    "channels first, depthwise": (channels_first(depthwise, 2), (2, 4, 8, 8), (3, 3, 4, 2)),
    "channels first, three dimensions": (
        lambda x, w: tf.nn.conv3d(x, w, [1, 1, 2, 1, 1], "SAME", data_format="NCDHW"),
        (2, 3, 4, 5, 6),
        (3, 2, 3, 3, 4),
    ),
    "one dimension": (lambda x, w: tf.nn.conv1d(x, w, 2, "SAME"), (2, 9, 4), (3, 4, 6)),
    "three dimensions": (
        lambda x, w: tf.nn.conv3d(x, w, [1, 1, 2, 1, 1], "SAME"),
        (2, 4, 5, 6, 3),
        (3, 2, 3, 3, 4),
    ),
}


def given(name, dtype=np.float32):
    function, image, kernel = CASES[name]
    x, w = (
        tf.constant(numbers(*shape, seed=n).astype(dtype))
        for n, shape in enumerate((image, kernel))
    )
    return (lambda x, w: tf.exp(-(function(tf.sin(x), w) ** 2))), x, w


QUICK = ("3x3", "3x3 of stride 2", "depthwise", "in a group for each feature", "transposed")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in CASES]
)
def test_values_and_gradients(name):
    function, x, w = given(name)
    assert_all_close(
        step_of(checkpoint(function), jit=True)(x, w),
        step_of(function, jit=True)(x, w),
        rtol=2e-5,
        atol=2e-5,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["3x3 of stride 2", "in groups", "depthwise", "three dimensions"])
def test_double_precision(name):
    function, x, w = given(name, np.float64)
    assert_all_close(
        step_of(checkpoint(function), jit=True)(x, w),
        step_of(function, jit=True)(x, w),
        rtol=1e-10,
        atol=1e-10,
    )


def forms(step, *arguments):
    """Return the order of dimensions of every convolution in the compiled program, such as
    b01f_01io->b01f.
    """
    text = step.experimental_get_compiler_ir(*arguments)(stage="optimized_hlo")
    return re.findall(r"convolution\([^\n]*dim_labels=([a-z0-9_>-]+)", text)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["3x3", "3x3 of stride 2", "dilated", "in groups", "transposed", "channels first"]
)
def test_every_convolution_of_the_program_is_in_the_form_of_the_fast_kernel(name):
    function, x, w = given(name)
    found = forms(step_of(checkpoint(function), jit=True), x, w)
    assert len(found) == 4  # forward, replayed, and the two gradients
    assert set(found) == {"b01f_01io->b01f"}


@pytest.mark.long
def test_left_out_xla_takes_other_forms_in_a_branch():
    """When this fails, XLA brings convolutions in branches into the fast form, and the kernel may
    go.
    """
    function, x, w = given("3x3")
    with leaving_out("convolutions"):
        found = forms(step_of(checkpoint(function), jit=True), x, w)
    assert set(found) > {"b01f_01io->b01f"}


@pytest.mark.long
def test_left_out_a_function_of_keras_is_a_call():
    """When this fails, Keras writes grouped convolutions in the open, and ``inlining`` may go."""
    layer = keras.layers.Conv2D(4, 3, padding="same", groups=2)
    layer.build((2, 8, 7, 4))

    def calls():
        checkpointed = checkpoint(lambda x: layer(tf.exp(-(layer(x) ** 2))))
        function = tf.function(checkpointed, jit_compile=True, autograph=False)
        graph = function.get_concrete_function(tf.TensorSpec((2, 8, 7, 4))).graph
        return [op for op in graph.get_operations() if "PartitionedCall" in op.type]

    assert not calls()
    with leaving_out("inlining"):
        assert calls()


@pytest.mark.parametrize("name", ["depthwise", "in a group for each feature"])
def test_a_depthwise_convolution_is_not(name):
    function, x, w = given(name)
    inside = [
        form
        for form in forms(step_of(checkpoint(function), jit=True), x, w)
        if form != "b01f_01io->b01f"
    ]
    assert (
        len(inside) == 3
    )  # all but the forward pass, which stands in the entry computation, where XLA chooses


def test_a_batch_that_is_not_known():
    function, x, w = given("in groups")
    step = tf.function(
        step_of(checkpoint(function), jit=True).python_function,
        jit_compile=True,
        autograph=False,
        input_signature=[tf.TensorSpec((None, *x.shape[1:])), tf.TensorSpec(w.shape)],
    )
    assert_all_close(step(x, w), step_of(function, jit=True)(x, w), rtol=2e-5, atol=2e-5)


def test_keras_writes_groups_into_a_function_of_its_own_and_they_are_found_there():
    layer = keras.layers.Conv2D(4, 3, padding="same", groups=4)
    x = tf.constant(numbers(2, 8, 7, 4))
    layer.build(x.shape)
    function = lambda x, w: layer(tf.exp(-(layer(x) ** 2))) * w  # noqa: E731
    w = tf.constant(numbers(4))
    step = step_of(checkpoint(function), jit=True)
    inside = [form for form in forms(step, x, w) if form != "b01f_01io->b01f"]
    assert len(inside) >= 4  # of both calls the gradients, and the replay
    assert_all_close(step(x, w), step_of(function, jit=True)(x, w), rtol=2e-5, atol=2e-5)
