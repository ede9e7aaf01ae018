"""Keras's recurrent layers in models with checkpoints: cut along time, and as plain Keras."""

import keras
import numpy as np
import pytest
from plain_oracle import assert_trains_as_plain, every

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from keras_recompute.layers.time_loops import sqrt_sections

L = keras.layers
BACKEND = keras.config.backend()
# 18 timesteps are 3 sections of 6. No number near the root divides 19: 3 of 5 and one of 4.
TIME, LONGER, UNITS, FEATURES = 18, 19, 4, 3
RNG = np.random.default_rng(0)
Y = RNG.normal(size=(3, 1)).astype("float32")
TOKENS = RNG.integers(1, 9, size=(3, LONGER)).astype("int32")
# Masked timesteps at the beginning, across the end of a section, and at the end.
for row, (begin, end) in enumerate([(0, 7), (4, 9), (12, LONGER)]):
    TOKENS[row, begin:end] = 0


def sequences(steps):
    return np.random.default_rng(1).normal(size=(3, steps, FEATURES)).astype("float32")


def network(*layers, steps=TIME):
    """Return a model of recurrent layers behind a dense one called ``before``."""
    inputs = keras.Input((steps, FEATURES))
    x = L.Dense(FEATURES, name="before")(inputs)
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, L.Dense(1)(x))


def behind_it(model):
    """Put the one checkpoint behind ``before``: the recurrent layers stand behind it."""
    return kr.checkpointed(model, at=["before"])


ALL = {"return_sequences": True}
STACKED = [lambda: L.GRUCell(UNITS, recurrent_dropout=0.3), lambda: L.LSTMCell(UNITS)]
LAYERS = {
    "loops of the backend's own": lambda: [
        L.LSTM(UNITS, **ALL),
        L.GRU(UNITS, go_backwards=True, **ALL),
        L.LSTM(UNITS, go_backwards=True, dropout=0.2),
    ],
    "steps of cells": lambda: [
        L.LSTM(UNITS, dropout=0.2, recurrent_dropout=0.2, **ALL),
        L.GRU(UNITS, reset_after=False, go_backwards=True, **ALL),
        L.SimpleRNN(UNITS),
    ],
    "unrolled": lambda: [L.LSTM(UNITS, unroll=True)],
    "layers around": lambda: [
        L.Bidirectional(L.GRU(UNITS, **ALL)),
        L.RNN(L.StackedRNNCells([make() for make in STACKED])),
    ],
}


@pytest.mark.parametrize(
    ("name", "steps"), [("unrolled", TIME), *((name, LONGER) for name in LAYERS)]
)
def test_it_trains_as_plain_keras(name, steps):
    assert_trains_as_plain(
        lambda: network(*LAYERS[name](), steps=steps), sequences(steps), Y, behind_it
    )


def masked(*layers):
    x = tokens = keras.Input((LONGER,), dtype="int32")
    for layer in (L.Embedding(9, FEATURES, mask_zero=True, name="before"), *layers):
        x = layer(x)
    return keras.Model(tokens, L.Dense(1)(x))


def test_masked_timesteps_are_as_in_plain_keras():
    def build():
        first = L.GRU(UNITS, zero_output_for_mask=True, **ALL)
        return masked(first, L.LSTM(UNITS, **ALL), L.SimpleRNN(UNITS, go_backwards=True))

    assert_trains_as_plain(build, TOKENS, Y, behind_it)


def test_states_are_handed_on():
    def build():
        inputs = keras.Input((TIME, FEATURES))
        x = L.Dense(FEATURES, name="before")(inputs)
        x, *states = L.LSTM(UNITS, return_sequences=True, return_state=True)(x)
        x = L.LSTM(UNITS)(x, initial_state=states)
        return keras.Model(inputs, L.Dense(1)(x))

    assert_trains_as_plain(build, sequences(TIME), Y, behind_it)


def test_states_are_kept_for_the_next_batch():
    """Weights and states; the last layer is not recomputed, and cut along time all the same.

    Keras's own loops of a stateful LSTM or GRU fail on PyTorch.
    """

    def trained(place):
        keras.utils.set_random_seed(3)
        x = inputs = keras.Input(batch_shape=(3, TIME, FEATURES))
        for _ in range(2):
            x = L.SimpleRNN(UNITS, stateful=True, **ALL)(x)
        model = place(keras.Model(inputs, x))
        model.compile("sgd", "mse")
        for _ in range(3):
            model.train_on_batch(sequences(TIME), np.ones((3, TIME, UNITS), "float32"))
        return [np.asarray(variable) for variable in model.variables]

    for ours, plain in zip(trained(every(1)), trained(lambda model: model), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)


def test_recomputed_layers_are_cut_as_well():
    # The pattern is of paths, and so of the layers and cells inside too.
    def build():
        both = [L.Bidirectional(L.GRU(UNITS, reset_after=False)), L.Dense(2, "tanh")]
        return network(keras.Sequential(both, name="rec"))

    def place(model):
        return kr.checkpointed(model, layers="rec*")

    assert_trains_as_plain(build, sequences(TIME), Y, place)


class TriesTwice(L.LSTM):
    """As Keras's layer on a GPU, which catches what cuDNN raises and runs its own loop then."""

    def inner_loop(self, *args, **kwargs):
        try:
            return super().inner_loop(*args, **kwargs)
        except Exception:
            return super().inner_loop(*args, **kwargs)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch ends a replay by an exception")
@pytest.mark.parametrize("place", [behind_it, lambda m: kr.checkpointed(m, layers="lstm*")])
def test_a_replay_is_not_ended_inside_a_layer_that_catches_exceptions(place):
    def build():
        return network(TriesTwice(UNITS, name="lstm"))

    assert_trains_as_plain(build, sequences(TIME), Y, place)


STEPS = 36 if BACKEND == "torch" else 256


@pytest.mark.parametrize("make", [L.LSTM, L.GRU])
def test_it_keeps_a_fraction_of_what_plain_keras_keeps(make):
    batch = np.zeros((8, STEPS, FEATURES), "float32"), np.zeros((8, 1), "float32")

    def needed(place):
        model = place(network(make(32), steps=STEPS))
        model.compile("sgd", "mse")
        return kr.liveness.profile(model, *batch).peak_bytes

    # In place of all steps: one section's, and a state for each section.
    assert needed(behind_it) < 0.5 * needed(lambda model: model)


def test_a_plan_counts_with_it():
    batch = np.zeros((8, STEPS, FEATURES), "float32"), np.zeros((8, 1), "float32")
    model = network(L.LSTM(32), steps=STEPS)
    model.compile("sgd", "mse")
    plain_bytes = kr.liveness.profile(model, *batch).peak_bytes
    planned, plan = kr.plan(model, memory_budget=plain_bytes // 2, sample=batch)
    assert plan.checkpoints or plan.layers
    planned.compile("sgd", "mse")
    assert kr.liveness.profile(planned, *batch).peak_bytes <= plain_bytes // 2


@pytest.mark.skipif(BACKEND != "jax", reason="PyTorch repeats the output before a section")
def test_masks_in_an_unrolled_layer_are_said():
    model = behind_it(masked(L.LSTM(UNITS, unroll=True)))
    model.compile("sgd", "mse")
    with pytest.warns(RecomputeWarning, match="all stay in memory.*unroll=True with a mask"):
        model.train_on_batch(TOKENS, Y)


def test_sections_near_the_root():
    assert sqrt_sections(TIME) == [(3, 6)]
    assert sqrt_sections(LONGER) == [(3, 5), (1, 4)]
