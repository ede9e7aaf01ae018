"""Keras's recurrent layers on JAX for a GPU that is not here."""

import os

import numpy as np
import pytest

if os.environ.get("KERAS_BACKEND") != "jax":
    pytest.skip("JAX alone", allow_module_level=True)

import keras

from keras_recompute.seams.keras.cudnn import rnn, without_cudnn

X = np.ones((2, 3, 4), "float32")


def test_layers_that_a_gpu_would_run_on_cudnn_are_noted():
    found = []
    layers = [
        keras.layers.LSTM(4),
        keras.layers.LSTM(4, use_cudnn=False),
        keras.layers.LSTM(4, activation="relu"),
        keras.layers.GRU(4),
    ]
    for layer in layers:
        before = len(found)
        with without_cudnn(lambda: found.append(1)):
            inside = layer(X)
        np.testing.assert_array_equal(inside, layer(X))
        assert len(found) - before == (layer is layers[0])


def test_keras_decides_again_behind_an_error():
    plain = rnn.cudnn_ok, rnn._is_gpu_available
    with without_cudnn(lambda: None):
        keras.layers.LSTM(4)(X)
        assert rnn.cudnn_ok is not plain[0]
    with pytest.raises(LookupError), without_cudnn(lambda: None):
        raise LookupError
    assert (rnn.cudnn_ok, rnn._is_gpu_available) == plain
