"""The fused LSTM and GRU against Keras's, same weights: outputs, states and every gradient."""

from __future__ import annotations

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.errors import UnsupportedError
from keras_recompute.layers.recurrent import GRU, LSTM
from tests.oracle import assert_all_close, assert_near, gradient_step, sum_of_squares

from .oracle import (
    BATCH,
    CELL,
    CELLS,
    FEATURES,
    PLAIN,
    TIME,
    UNITS,
    numbers,
    pair,
    results,
    states_for,
)

GRUS = ("gru-after", "gru-before")
JIT = pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.long)], ids=["no-jit", "jit"]
)
X = numbers(BATCH, TIME, FEATURES)


# Any two of the three both ways in all combinations; for LSTM, the long tests included, all three.
PAIRWISE, OTHERS = (
    [flags for flags in itertools.product([True, False], repeat=3) if sum(flags) % 2 == odd]
    for odd in (1, 0)
)


@pytest.mark.parametrize(
    ("cell", "sequences", "state", "initial"),
    [
        *((cell, *flags) for cell in ("lstm", "gru-after") for flags in PAIRWISE),
        *(pytest.param("gru-before", *flags, marks=pytest.mark.long) for flags in PAIRWISE),
        *(pytest.param("lstm", *flags, marks=pytest.mark.long) for flags in OTHERS),
    ],
    ids=lambda value: value if isinstance(value, str) else "with" if value else "without",
)
def test_outputs_states_and_gradients(cell, sequences, state, initial):
    ours, plain = pair(cell, return_sequences=sequences, return_state=state)
    given = states_for(plain) if initial else None
    assert_near(results(ours, X, given), results(plain, X, given), 1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "sequences"),
    [*((cell, True) for cell in GRUS), ("lstm", False), ("lstm", True)],
)
def test_compiled(cell, sequences):
    ours, plain = pair(cell, return_sequences=sequences, return_state=True)
    given = states_for(plain)
    assert_near(results(ours, X, given, jit=True), results(plain, X, given), 1e-5)


@CELL
def test_double_precision(cell):
    ours, plain = pair(cell, return_sequences=True, return_state=True, dtype="float64")
    x, given = X.astype("float64"), states_for(plain, "float64")
    assert_near(results(ours, x, given), results(plain, x, given), 1e-10)


@functools.lru_cache(maxsize=None)
def exact_results(cell):
    return results(pair(cell, return_sequences=True)[1], X)


@CELL
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("mixed_float16", 1e-2),
        *(
            pytest.param(*given, marks=pytest.mark.long)
            for given in (("float16", 1e-2), ("bfloat16", 8e-2))
        ),
    ],
)
def test_half_precision_is_near_the_exact_result(cell, dtype, tolerance):
    # Keras's default, the orthogonal initialiser, has no bfloat16
    ours, _ = pair(cell, return_sequences=True, dtype=dtype, recurrent_initializer="glorot_uniform")
    compute = tf.float16 if dtype == "mixed_float16" else dtype
    half = results(ours, tf.cast(X, compute))
    assert ours(tf.cast(X, compute)).dtype == ours.compute_dtype
    assert_near(half, exact_results(cell), tolerance)


@CELL
@pytest.mark.parametrize(
    "arguments",
    [{"use_bias": False}, {"go_backwards": True}, {"go_backwards": True, "return_sequences": True}],
    ids=str,
)
def test_other_arguments(cell, arguments):
    ours, plain = pair(cell, return_state=True, **arguments)
    assert_near(results(ours, X), results(plain, X), 1e-5)


@CELL
@pytest.mark.parametrize("length", [1, 2])
def test_short_sequences(cell, length):
    ours, plain = pair(cell, return_sequences=True)
    given = states_for(plain)
    assert_near(results(ours, X[:, :length], given), results(plain, X[:, :length], given), 1e-5)


@CELL
def test_one_feature_and_one_sample(cell):
    ours, plain = pair(cell, features=1, return_sequences=True)
    assert_near(results(ours, X[:1, :, :1]), results(plain, X[:1, :, :1]), 1e-5)


@pytest.mark.parametrize(
    ("cell", "jit"),
    [
        ("lstm", False),
        *(
            pytest.param(*given, marks=pytest.mark.long)
            for given in [*((c, False) for c in GRUS), ("lstm", True)]
        ),
    ],
)
def test_dropout_draws_keras_s_mask(cell, jit):
    """Same seed, same mask: with a mask of its own not even the order of magnitude would agree."""
    ours, plain = pair(cell, return_sequences=True, dropout=0.5, seed=11)
    dropped = results(ours, X, jit=jit, training=True)
    assert_near(dropped, results(plain, X, jit=jit, training=True), 1e-5)
    undropped, _ = pair(cell, return_sequences=True)
    assert np.abs(dropped[0] - results(undropped, X)[0]).max() > 0.01
    assert_near(results(ours, X, training=False), results(undropped, X), 1e-6)


@CELL
def test_dropout_draws_anew_at_every_call(cell):
    ours, plain = pair(cell, return_sequences=True, dropout=0.5, seed=11)
    first, second = (ours(X, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 0.01
    plain(X, training=True)
    np.testing.assert_allclose(second, plain(X, training=True), atol=1e-6)


@CELL
def test_the_seed_decides_the_mask(cell):
    same, other = (pair(cell, dropout=0.5, seed=seed)[0](X, training=True) for seed in (5, 6))
    np.testing.assert_array_equal(pair(cell, dropout=0.5, seed=5)[0](X, training=True), same)
    assert np.abs(same - other).max() > 0.01


@CELL
def test_stateful(cell):
    ours, plain = pair(cell, return_sequences=True, stateful=True)
    for part in (X[:, :3], X[:, 3:]):
        np.testing.assert_allclose(ours(part), plain(part), atol=1e-6)
    for a, b in zip(ours.states, plain.states, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        assert np.abs(b).max() > 0
    ours.reset_states()
    plain.reset_states()
    np.testing.assert_allclose(ours(X), plain(X), atol=1e-6)


@CELL
def test_two_halves_with_the_state_handed_on_are_the_whole(cell):
    ours, _ = pair(cell, return_sequences=True, return_state=True)
    first, *states = ours(X[:, :2])
    second, *last = ours(X[:, 2:], initial_state=states)
    whole, *end = ours(X)
    np.testing.assert_allclose(tf.concat([first, second], axis=1), whole, atol=1e-6)
    assert_all_close(last, end, atol=1e-6)


@CELL
@JIT
def test_an_unknown_batch_size(cell, jit):
    ours, plain = pair(cell, return_sequences=True)

    gradients = tf.function(
        gradient_step(ours),
        input_signature=[tf.TensorSpec((None, TIME, FEATURES))],
        jit_compile=jit,
        autograph=False,
    )
    for batch in (1, 3):
        expected = gradient_step(plain)(X[:batch])
        assert_near([g.numpy() for g in gradients(X[:batch])], [g.numpy() for g in expected], 1e-5)


@CELL
def test_weights_are_keras_s(cell):
    ours, plain = pair(cell)
    assert [(w.name, w.shape) for w in ours.weights] == [(w.name, w.shape) for w in plain.weights]
    assert isinstance(ours, type(plain))
    plain.set_weights([w + 1 for w in ours.get_weights()])
    ours.set_weights(plain.get_weights())
    np.testing.assert_allclose(ours(X), plain(X), atol=1e-6)


@CELL
def test_fresh_weights_are_drawn_as_keras_draws_them(cell):
    ours_class, arguments = CELLS[cell]
    weights = []
    for layer_class in (ours_class, PLAIN[ours_class]):
        keras.utils.set_random_seed(3)
        layer = layer_class(UNITS, **arguments)
        layer.build((BATCH, TIME, FEATURES))
        weights.append(layer.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)


@CELL
def test_save_and_load(cell, tmp_path):
    ours_class, arguments = CELLS[cell]
    inputs = keras.Input((TIME, FEATURES))
    layer = ours_class(UNITS, return_sequences=True, dropout=0.25, go_backwards=True, **arguments)
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is ours_class
    assert loaded.layers[-1].get_config() == layer.get_config()
    np.testing.assert_array_equal(loaded(X), model(X))


@pytest.mark.parametrize(
    ("cell", "jit"),
    [
        ("lstm", False),
        *(
            pytest.param(*given, marks=pytest.mark.long)
            for given in [*((c, False) for c in GRUS), ("gru-after", True)]
        ),
    ],
)
def test_fit_in_a_plain_keras_model(cell, jit):
    """Three optimiser steps lead to the weights of the model with Keras's layer."""
    ours, plain = pair(cell, return_sequences=True)
    weights = []
    for layer in (ours, plain):
        inputs = keras.Input((TIME, FEATURES))
        model = keras.Model(inputs, layer(inputs))
        model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=jit)
        model.fit(X, numbers(BATCH, TIME, UNITS, seed=9), batch_size=BATCH, epochs=3, verbose=0)
        weights.append(model.get_weights())
    assert_all_close(*weights, atol=1e-5)


@pytest.mark.parametrize("layer", [LSTM, GRU])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("activation", "relu"),
        ("recurrent_activation", "hard_sigmoid"),
        ("recurrent_dropout", 0.1),
        ("unroll", True),
    ],
)
def test_what_is_not_supported_is_refused_by_name(layer, name, value):
    with pytest.raises(
        UnsupportedError, match=rf"{layer.__name__} '\w+': {name}=.*{value}.* is not supported"
    ) as refused:
        layer(UNITS, **{name: value})
    assert f"keras.layers.{layer.__name__}" in str(refused.value), (
        "the message must say what to use instead"
    )
    assert isinstance(refused.value, NotImplementedError)


@CELL
def test_a_mask_is_refused(cell):
    ours, _ = pair(cell)
    with pytest.raises(UnsupportedError, match="was given a mask"):
        ours(X, mask=tf.ones((BATCH, TIME), tf.bool))
    embedded = keras.layers.Embedding(7, FEATURES, mask_zero=True)(tf.ones((BATCH, TIME)))
    with pytest.raises(UnsupportedError, match="was given a mask"):
        ours(embedded)


def test_cudnn_is_not_ignored():
    with pytest.raises(UnsupportedError, match=r"has use_cudnn=True.*on TensorFlow never"):
        GRU(2, use_cudnn=True)(tf.zeros([1, 3, 2]))


@CELL
def test_an_unknown_number_of_timesteps_is_refused(cell):
    ours, _ = pair(cell)

    @tf.function(input_signature=[tf.TensorSpec((BATCH, None, FEATURES))], autograph=False)
    def run(x):
        return ours(x)

    with pytest.raises(
        UnsupportedError,
        match=r"needs a known number of timesteps, and its input is \(3, None, 5\)",
    ):
        run(X)


@CELL
def test_a_gradient_through_one_result_alone(cell):
    """The gradients of the other results are then missing, not zero, when the layer is
    differentiated.
    """
    ours, plain = pair(cell, return_sequences=True, return_state=True)
    for which in range(len(ours(X))):
        found = []
        for layer in (ours, plain):
            loss = lambda results: sum_of_squares(results[which])  # noqa: B023, E731
            step = gradient_step(layer, loss=loss)
            found.append(step(X))
        assert_near(*found, 1e-5)
