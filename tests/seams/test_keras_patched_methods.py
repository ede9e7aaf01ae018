"""Keras's constructors and calls can be gone through, and are as they were afterwards."""

import keras

from keras_recompute.seams.keras.patched_methods import patch_constructor, patch_method


def test_arguments_of_constructors_are_adapted():
    """Of a class that has a constructor of its own, and of one that has not."""

    def adapted(_, *args, **kwargs):
        return args, {**kwargs, "name": "adapted"}

    others = keras.Model.__init__, keras.layers.InputLayer.__init__
    # Not in Keras's; other tests may have gone this way
    before = "__init__" in vars(keras.optimizers.Optimizer)
    with patch_constructor(keras.layers.Dropout, adapted), patch_constructor(
        keras.optimizers.Optimizer, adapted
    ):
        assert keras.layers.Dropout(0.5).name == "adapted"
        assert keras.optimizers.SGD().name == "adapted"
    assert keras.layers.Dropout(0.5, name="own").name == "own"
    assert keras.optimizers.SGD(name="own").name == "own"
    assert ("__init__" in vars(keras.optimizers.Optimizer)) == before
    assert (keras.Model.__init__, keras.layers.InputLayer.__init__) == others


def test_methods_are_gone_through():
    layer, plain = keras.layers.SimpleRNN(2), keras.layers.RNN.call

    def through(plain, called, *args, **kwargs):
        return plain(called, *args, **kwargs) * 0

    x = keras.ops.ones((1, 2, 3))
    assert keras.ops.any(layer(x) != 0)
    with patch_method(keras.layers.RNN, "call", through):
        assert keras.ops.all(layer(x) == 0)
        assert keras.layers.RNN(keras.layers.SimpleRNNCell(2))(
            sequences=x, training=True
        ).shape == (1, 2)
    assert keras.layers.RNN.call is plain
