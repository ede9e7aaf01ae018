"""Models that use one recurrent layer several times, with checkpoints in between."""

import keras
import numpy as np
import pytest
from plain_oracle import assert_trains_as_plain

import keras_recompute as kr
from keras_recompute.keras_backend import FEATURES

TIME, UNITS = 6, 4
X = np.random.default_rng(0).normal(size=(3, TIME, 5)).astype("float32")
Y = np.random.default_rng(1).normal(size=(3, TIME, 1)).astype("float32")


def halves(layer, *, checkpoint=True):
    """Return a network of two halves in time. Its layer makes the first states itself."""
    inputs = keras.Input((TIME, 5))
    first, *states = layer(kr.TimeSlice(0, TIME // 2)(inputs))
    if checkpoint:
        first, *states = kr.RecomputationCheckpoint()([first, *states])
    second, *_ = layer(kr.TimeSlice(TIME // 2, TIME)(inputs), initial_state=states)
    joined = keras.layers.Concatenate(axis=1)([first, second])
    return keras.Model(inputs, keras.layers.Dense(1)(joined))


def layer_of(home, name):
    return getattr(home, name)(UNITS, return_sequences=True, return_state=True)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN"])
def test_checkpoints_in_time_train_as_plain_keras(name):
    assert_trains_as_plain(lambda: halves(layer_of(keras.layers, name)), X, Y, kr.checkpointed)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_fused_layers_train_as_plain_keras(name, backend):
    if backend not in FEATURES[name]:
        pytest.skip(f"no {name} on {backend}")

    def place(_):
        keras.utils.set_random_seed(3)
        return kr.checkpointed(halves(layer_of(kr, name)))

    assert_trains_as_plain(lambda: halves(layer_of(keras.layers, name)), X, Y, place)


def test_a_plan_knows_the_first_states():
    model = halves(layer_of(keras.layers, "LSTM"), checkpoint=False)
    model.compile("adam", "mse")
    planned, _ = kr.plan(model, memory_budget="1GiB", batch_size=3)
    assert planned.count_params() == model.count_params()
