"""Pooling in sections under XLA on a CPU: TensorFlow's numbers, also of equal elements, without
arrays for a search.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.passes import leaving_out
from keras_recompute.liveness import profile
from tests.oracle import loss_step, numbers

IMAGE = (2, 7, 8, 3)


def pooling(kind, window, strides, padding):
    return lambda x: tf.sin(tf.nn.pool(tf.sqrt(x), window, kind, strides, padding))


CASES = {
    f"{kind} {window} of strides {strides}, {padding}": (
        pooling(kind, window, strides, padding),
        image,
    )
    for kind in ("MAX", "AVG")
    for window, strides, padding, image in [
        ((2, 2), (2, 2), "VALID", IMAGE),
        ((2, 2), (2, 2), "SAME", IMAGE),
        ((3, 3), (2, 2), "SAME", IMAGE),
        ((3, 3), (2, 2), "VALID", IMAGE),
        ((3, 3), (1, 1), "SAME", IMAGE),
        ((4, 3), (3, 1), "SAME", IMAGE),
        ((5, 2), (2, 1), "VALID", IMAGE),
        ((3,), (2,), "SAME", (2, 9, 3)),
        ((2, 3, 2), (2, 2, 1), "SAME", (2, 4, 5, 6, 3)),
    ]
}


def step_of(function, *, jit=True):
    """Return the function of an image that returns a loss's value and gradient."""
    step = loss_step(function, of_inputs=True, loss=tf.reduce_sum)
    return tf.function(step, jit_compile=jit, autograph=False)


def with_ties(shape, dtype=np.float32):
    """Half of the elements are the same, as behind a relu, and many of the others."""
    return tf.constant(
        np.maximum(np.round(numbers(*shape, seed=len(shape)) * 2) / 2, 0.25).astype(dtype)
    )


def without_ties(shape):
    """For volumes: of equal elements TensorFlow's kernel gives the gradient to the first with
    oneDNN, to all without.
    """
    found = np.abs(numbers(*shape, seed=len(shape))) + 0.25
    assert np.unique(found).size == found.size
    return tf.constant(found.astype(np.float32))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.long)])
def test_values_and_gradients(name, dtype):
    """Beside TensorFlow's own kernels: of equal elements XLA takes another one where a window
    reaches over the edge.
    """
    function, shape = CASES[name]
    x = without_ties(shape) if len(shape) == 5 else with_ties(shape, dtype)
    if len(shape) == 5 and dtype == np.float64:
        pytest.skip("TensorFlow pools volumes in float32 only")
    found, wanted = step_of(checkpoint(function))(x), step_of(function, jit=False)(x)
    precision = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(found[0], wanted[0], rtol=precision)
    np.testing.assert_allclose(found[1], wanted[1], rtol=precision, atol=precision)


def test_the_first_of_equal_elements_gets_the_gradient():
    """In a window of [[1, 3], [3, 3]] that is the upper right one."""
    x = tf.constant([[1.0, 3.0], [3.0, 3.0]])[None, :, :, None]
    _, gradient = step_of(checkpoint(CASES["MAX (2, 2) of strides (2, 2), VALID"][0]))(x)
    slope = np.cos(3**0.5) / (2 * 3**0.5)
    np.testing.assert_allclose(gradient[0, :, :, 0], [[0, slope], [0, 0]], rtol=1e-6)


def test_what_is_no_number_is_passed_over():
    function = lambda x: tf.sin(tf.nn.max_pool2d(tf.math.abs(x), 2, 2, "VALID"))  # noqa: E731 - a gradient that multiplies none
    x = tf.constant([[1.0, np.nan], [3.0, 3.0]])[None, :, :, None]
    found, wanted = step_of(checkpoint(function))(x), step_of(function, jit=False)(x)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1][0, 1, :, 0], [np.cos(3.0), 0], rtol=1e-6)


def test_a_batch_that_is_not_known():
    function, shape = CASES["MAX (3, 3) of strides (2, 2), SAME"]
    step = step_of(checkpoint(function)).python_function
    step = tf.function(
        step, jit_compile=True, autograph=False, input_signature=[tf.TensorSpec((None, *shape[1:]))]
    )
    x = with_ties(shape)
    np.testing.assert_allclose(step(x)[1], step_of(function, jit=False)(x)[1], rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["MAX (2, 2) of strides (2, 2), VALID", "MAX (3, 3) of strides (2, 2), SAME"]
)
def test_no_arrays_are_made_for_a_search(name):
    """XLA's own gradient takes four arrays as large as the image and more, beside what it starts
    from and its result.
    """
    function, _ = CASES[name]
    record = profile(step_of(checkpoint(function)), tf.TensorSpec((8, 32, 32, 64)))
    image = 8 * 32 * 32 * 64 * 4
    assert record.not_always_live_peak_bytes <= 3 * image
    # When this fails, XLA's own gradient makes no such arrays, and the kernel may go.
    with leaving_out("pooling"):
        record = profile(step_of(checkpoint(function)), tf.TensorSpec((8, 32, 32, 64)))
    assert record.not_always_live_peak_bytes > 4 * image
