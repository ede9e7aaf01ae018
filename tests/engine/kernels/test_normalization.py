"""Keras's batch normalisation without XLA: its gradient by one kernel, where that computes the
same.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.passes import leaving_out
from tests.oracle import assert_all_close, gradient_step, loss_and_gradients, numbers, sum_of_sines

from ..engine_vs_plain import step_of

FUSED = {"FusedBatchNormGradV3"}
IMAGE = (3, 5, 4, 2)
CASES = {
    "image": ({}, IMAGE, True),
    "epsilon and momentum": ({"epsilon": 0.1, "momentum": 0.5}, IMAGE, True),
    "without a scale": ({"scale": False}, IMAGE, True),
    "without a centre": ({"center": False}, IMAGE, True),
    "axis 3": ({"axis": 3}, IMAGE, True),
    "one place": ({}, (1, 1, 1, 2), True),
    "channels first": ({"axis": 1}, IMAGE, False),
    "vectors": ({}, (6, 2), False),
    "float64": ({"dtype": "float64"}, IMAGE, False),
    "frozen": ({"trainable": False}, IMAGE, False),
}


def outcome_of(function, layer, x):
    """Return loss, gradients and new statistics of one step from fresh statistics, and the types of
    its operations.
    """
    layer.moving_mean.assign(tf.zeros_like(layer.moving_mean))
    layer.moving_variance.assign(tf.ones_like(layer.moving_variance))
    made, kinds = step_of(function, layer, x)
    return [*made(x), layer.moving_mean.numpy(), layer.moving_variance.numpy()], kinds


def built(options, shape):
    keras.utils.set_random_seed(0)
    layer = keras.layers.BatchNormalization(**options)
    layer.build(shape)
    for number, variable in enumerate(layer.trainable_variables):
        variable.assign(numbers(*variable.shape, seed=number))
    return layer


@pytest.mark.parametrize("name", CASES)
def test_values_gradients_and_statistics(name):
    options, shape, is_fused = CASES[name]
    layer = built(options, shape)
    x = tf.constant(numbers(*shape).astype(options.get("dtype", "float32")))
    function = lambda x: layer(tf.tanh(x), training=True)  # noqa: E731
    (ours, kinds), (plain, plain_kinds) = (
        outcome_of(checkpoint(function), layer, x),
        outcome_of(function, layer, x),
    )
    assert_all_close(ours, plain, rtol=1e-5, atol=1e-5)
    for result in (0, -2, -1):  # the loss and the new statistics, which are computed as ever
        np.testing.assert_array_equal(ours[result], plain[result])
    assert not plain_kinds & FUSED
    assert (kinds >= FUSED) == is_fused


@pytest.mark.parametrize("training", [False, None])
def test_statistics_that_are_only_read(training):
    layer = built({}, IMAGE)
    x = tf.constant(numbers(*IMAGE))
    _, kinds = outcome_of(checkpoint(lambda x: layer(x, training=training)), layer, x)
    assert not kinds & FUSED


def test_a_mask_is_heeded():
    layer = built({}, IMAGE)
    x, mask = tf.constant(numbers(*IMAGE)), tf.constant(numbers(*IMAGE[:3]) > 0)
    function = lambda x: layer(x, training=True, mask=mask)  # noqa: E731
    (ours, kinds), (plain, _) = (
        outcome_of(checkpoint(function), layer, x),
        outcome_of(function, layer, x),
    )
    assert_all_close(ours, plain, rtol=1e-5, atol=1e-5)
    assert not kinds & FUSED


def test_the_sizes_of_all_that_is_kept_are_known():
    layer = built({}, IMAGE)
    rows = kr.saved_residuals(lambda x: layer(tf.tanh(x), training=True), tf.zeros(IMAGE))
    # The image that is normalised; scale, mean and variance of both channels.
    assert sum(row.bytes for row in rows) == 4 * (3 * 5 * 4 * 2 + 3 * 2)


def test_a_batch_of_unknown_size():
    layer = built({}, IMAGE)
    signature = [tf.TensorSpec((None, None, None, 2))]

    def with_gradient(function):
        def step(x):
            y = function(x)
            return y, tf.gradients(tf.reduce_sum(tf.sin(y)), x)[0]

        return tf.function(step, autograph=False, input_signature=signature)

    function = lambda x: layer(x, training=True)  # noqa: E731
    step = with_gradient(checkpoint(function))
    assert {
        operation.type for operation in step.get_concrete_function().graph.get_operations()
    } >= FUSED
    x = tf.constant(numbers(*IMAGE))
    assert_all_close(step(x), with_gradient(function)(x), rtol=1e-5, atol=1e-5)


def test_second_derivatives():
    layer = built({}, IMAGE)
    x = tf.constant(numbers(*IMAGE))

    def second(function):
        first = gradient_step(function, of_inputs=True, loss=sum_of_sines)
        return loss_and_gradients(lambda x: first(x)[0], x, of_inputs=True)

    function = lambda x: layer(x, training=True)  # noqa: E731
    assert_all_close(second(checkpoint(function)), second(function), rtol=1e-3, atol=1e-3)


def test_left_out_and_compiled_it_is_keras_own():
    layer = built({}, IMAGE)
    x = tf.constant(numbers(*IMAGE))
    function = lambda x: layer(x, training=True)  # noqa: E731
    with leaving_out("normalization"):
        _, kinds = outcome_of(checkpoint(function), layer, x)
    assert not kinds & FUSED
    compiled = tf.function(
        checkpoint(function), autograph=False, jit_compile=True
    ).get_concrete_function(x)
    assert not {operation.type for operation in compiled.graph.get_operations()} & FUSED
