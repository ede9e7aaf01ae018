"""Sections nested in loops of loops: equal results, less memory, and a setting that is saved with
the model.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.liveness import profile
from tests.oracle import (
    assert_all_close,
    gradient_step,
    loss_and_gradients,
    mean_square,
    sum_of_sines,
)

STEPS, FEATURES, UNITS, BATCH = 64, 6, 5, 3


def network(
    layer, sections, *, levels=1, steps=STEPS, units=UNITS, batch=BATCH, return_sequences=True
):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((steps, FEATURES), batch_size=batch)
    recurrent = layer(units, return_sequences=return_sequences, return_state=True)
    state, outputs, length = None, [], steps // sections
    for begin in range(0, steps, length):
        y, *state = recurrent(kr.TimeSlice(begin, begin + length)(inputs), initial_state=state)
        state = kr.RecomputationCheckpoint()(state)
        outputs.append(y)
    x = (
        keras.layers.Concatenate(axis=1)(outputs)
        if return_sequences
        else keras.layers.Average()(outputs)
    )
    model = kr.Model(inputs, keras.layers.Dense(1)(x))
    model.recomputation_levels = levels
    return model


def gradients(model, jit):
    x = np.random.RandomState(0).randn(BATCH, STEPS, FEATURES).astype("float32")
    mode = "jit" if jit else "graph"
    return loss_and_gradients(model, x, mode=mode, of_inputs=True, loss=sum_of_sines)


@pytest.mark.parametrize(
    ("layer", "jit", "return_sequences", "several"),
    [
        pytest.param(kr.LSTM, True, True, [3], marks=pytest.mark.long),
        (kr.LSTM, False, True, [2]),
        pytest.param(kr.GRU, True, False, [2], marks=pytest.mark.long),
    ],
    ids=["lstm-jit-joined", "lstm-joined", "gru-jit-stacked"],
)
def test_levels_change_no_value_and_no_gradient(layer, jit, return_sequences, several):
    # Of the sections 15 are recomputed: 5 x 3.
    expected = gradients(network(layer, 16, return_sequences=return_sequences), jit)
    for levels in several:
        found = gradients(network(layer, 16, levels=levels, return_sequences=return_sequences), jit)
        assert_all_close(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.long
def test_two_levels_need_less_than_one():
    def needed(sections, levels):
        model = network(kr.LSTM, sections, levels=levels, steps=528, units=32, batch=32)
        step = gradient_step(model, loss=mean_square)
        program = profile(step, tf.TensorSpec((32, 528, FEATURES)), input_feed=["x"])
        return program.allocated_temporary_bytes

    # The last section is not recomputed: 32 of 33 remain, 8 groups of 4.
    assert needed(33, 2) < needed(33, 1)


def test_the_levels_are_saved_with_the_model(tmp_path):
    model = network(kr.LSTM, 8, levels=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.recomputation_levels == 2
    assert loaded.plan.levels == 2


@pytest.mark.parametrize("levels", [0, -1, 1.5, True, "2"])
def test_levels_count_loops(levels):
    with pytest.raises(InvalidArgumentError, match="recomputation_levels"):
        network(kr.LSTM, 4).recomputation_levels = levels
