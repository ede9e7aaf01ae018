"""The convolutions of Keras's backend, through a function of ours."""

import keras
import numpy as np
import pytest

from keras_recompute.seams.keras.convolutions import replace_convolutions

L = keras.layers
X = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(2, 8, 8, 4)), "float32")


@pytest.mark.parametrize(
    ("layer", "names", "strides", "padding"),
    [
        (L.Conv2D(6, 3, strides=2), ["conv"], (2, 2), "valid"),
        (L.DepthwiseConv2D(3, padding="same"), ["depthwise_conv"], (1, 1), "same"),
    ],
)
def test_a_layer_convolves_by_the_function(layer, names, strides, padding):
    seen = []

    def run(plain, inputs, kernel, **options):
        seen.append((plain.__name__, tuple(options["strides"]), options["padding"]))
        assert (tuple(inputs.shape), tuple(kernel.shape)) == (
            (2, 8, 8, 4),
            tuple(layer.kernel.shape),
        )
        return plain(inputs, kernel, **options)

    wanted = layer(X)
    with replace_convolutions(run):
        np.testing.assert_array_equal(layer(X), wanted)
    layer(X)
    assert seen == [(name, strides, padding) for name in names]


def test_its_result_is_that_of_the_layer():
    layer = L.Conv2D(6, 3, use_bias=False)
    with replace_convolutions(lambda *_, **__: keras.ops.ones((2, 6, 6, 6))):
        np.testing.assert_array_equal(layer(X), np.ones((2, 6, 6, 6)))


def test_separable_convolutions_call_it_too():
    layer, seen = L.SeparableConv2D(6, 3), []
    layer.build(X.shape)

    def run(plain, *arguments, **options):
        seen.append(plain.__name__)
        return plain(*arguments, **options)

    with replace_convolutions(run):
        layer(X)
    if keras.backend.backend() == "jax":  # TensorFlow has an operation of its own
        assert seen == ["depthwise_conv", "conv"]
