"""Keras's convolutions in groups without XLA: where each feature has a group, TensorFlow's
depthwise ones.
"""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.passes import leaving_out
from tests.oracle import assert_all_close, numbers

from ..engine_vs_plain import step_of

DEPTHWISE = {
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropFilter",
    "DepthwiseConv2dNativeBackpropInput",
}
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
CASES = {
    "7x7": ({"filters": 4, "kernel_size": 7, "padding": "same", "groups": 4}, True),
    "two results of each feature": ({"filters": 8, "kernel_size": 3, "groups": 4}, True),
    "stride 2": (
        {"filters": 4, "kernel_size": (3, 2), "strides": 2, "padding": "same", "groups": 4},
        True,
    ),
    "strides 2 and 1": ({"filters": 4, "kernel_size": 3, "strides": (2, 1), "groups": 4}, False),
    "dilated": ({"filters": 4, "kernel_size": 3, "dilation_rate": 2, "groups": 4}, False),
    "larger groups": ({"filters": 6, "kernel_size": 3, "padding": "same", "groups": 2}, False),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    options, is_depthwise = CASES[name]
    keras.utils.set_random_seed(0)
    layer = keras.layers.Conv2D(**options, dtype="float64")
    x = tf.constant(numbers(2, 9, 8, 4).astype("float64"))
    layer.build(x.shape)
    function = lambda x: layer(tf.tanh(x))  # noqa: E731
    (ours, kinds), (plain, plain_kinds) = (
        step_of(checkpoint(function), layer, x),
        step_of(function, layer, x),
    )
    assert_all_close(ours(x), plain(x), rtol=1e-11, atol=1e-11)
    assert plain_kinds & CALLS
    assert (kinds >= DEPTHWISE, bool(kinds & CALLS)) == (is_depthwise, not is_depthwise)


def test_left_out_it_is_a_call():
    layer = keras.layers.Conv2D(4, 3, groups=4)
    x = tf.constant(numbers(2, 9, 8, 4))
    layer.build(x.shape)
    with leaving_out("depthwise"):
        _, kinds = step_of(checkpoint(layer), layer, x)
    assert kinds & CALLS
    assert not kinds & DEPTHWISE


@pytest.mark.parametrize("shape", [(None, 9, 8, 4), (2, None, None, 4)])
def test_sizes_that_are_not_known(shape):
    """Of an image the call stays; a batch is of no concern."""
    layer = keras.layers.Conv2D(4, 3, groups=4)
    x = tf.constant(numbers(2, 9, 8, 4))
    layer.build(x.shape)
    function = lambda x: layer(tf.tanh(x))  # noqa: E731
    (ours, kinds), (plain, _) = (
        step_of(f, layer, tf.TensorSpec(shape)) for f in (checkpoint(function), function)
    )
    assert_all_close(ours(x), plain(x), rtol=1e-4, atol=1e-4)
    assert bool(kinds & CALLS) == (shape[1] is None)


def test_what_is_to_be_compiled_for_other_reasons_is_called():
    layer = keras.layers.Conv2D(4, 3, groups=4)
    x = tf.constant(numbers(2, 9, 8, 4))
    layer.build(x.shape)
    compiled = tf.function(
        lambda x: tf.exp(tf.nn.convolution(x, layer.kernel)), jit_compile=True, autograph=False
    )
    _, kinds = step_of(checkpoint(compiled), layer, x)
    assert kinds & CALLS
