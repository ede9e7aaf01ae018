"""Keras's recurrent layers in sections of time: results, states and all gradients are those of the
plain layer.
"""

from __future__ import annotations

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from keras_recompute.layers.time_loops import sqrt_sections
from keras_recompute.layers.time_sections import section_recurrent_layers
from tests.oracle import assert_all_close

layers = keras.layers
BATCH, TIME, FEATURES, UNITS = 3, 7, 5, 4  # 7 steps are sections of 3, 2 and 2


def numbers(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).standard_normal(shape), tf.float32)


X = numbers(BATCH, TIME, FEATURES)
IMAGES = numbers(BATCH, TIME, 6, 6, 2)
# The first step of one sequence and the last of another are masked, and one sequence is so as a
# whole.
MASK = tf.constant([[0, 1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 0, 0], [0] * 7]) > 0
STATES = [numbers(BATCH, UNITS, seed=1), numbers(BATCH, UNITS, seed=2)]


class Attending(layers.Layer):
    """A cell that attends to a memory, with an output of another size than its states."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.state_size, self.output_size = [UNITS, 6], 2

    def build(self, shape):
        self.memory = self.add_weight(shape=(8, 6), name="memory")
        self.query, self.advance, self.read = (layers.Dense(units) for units in (6, UNITS, 2))
        self.query.build((None, UNITS))
        self.advance.build((None, shape[-1] + UNITS + 6))
        self.read.build((None, UNITS))

    def call(self, inputs, states):
        state, found = states
        weights = tf.nn.softmax(tf.matmul(self.query(state), self.memory, transpose_b=True))
        found = 0.5 * found + tf.matmul(weights, self.memory)
        state = tf.tanh(self.advance(tf.concat([inputs, state, found], axis=-1)))
        return self.read(state), [state, found]


class Noisy(layers.Layer):
    """A cell that draws another mask at each step."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.state_size = UNITS
        self.seeds = keras.random.SeedGenerator(3)

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1] + UNITS, UNITS), name="kernel")

    def call(self, inputs, states, training=False):
        state = tf.tanh(tf.matmul(tf.concat([inputs, states[0]], axis=-1), self.kernel))
        state = keras.random.dropout(state, 0.4, seed=self.seeds) if training else state
        return state, [state]


def rnn(*cells, **options):
    return layers.RNN(cells[0] if len(cells) == 1 else list(cells), **options)


SEQUENCES = {"return_sequences": True}
BOTH = {"dropout": 0.3, "recurrent_dropout": 0.4, "seed": 1}
# name: (layer, inputs, arguments of the call)
CASES = {
    "lstm": (lambda: layers.LSTM(UNITS, **SEQUENCES, return_state=True), X, {}),
    "last-output": (lambda: layers.LSTM(UNITS), X, {}),
    "mask": (lambda: layers.LSTM(UNITS, **SEQUENCES), X, {"mask": MASK}),
    "mask-last-output": (lambda: layers.GRU(UNITS, return_state=True), X, {"mask": MASK}),
    "initial-state": (lambda: layers.LSTM(UNITS), X, {"mask": MASK, "initial_state": STATES}),
    "backwards": (lambda: layers.GRU(UNITS, **SEQUENCES, go_backwards=True), X, {"mask": MASK}),
    "reset-before": (lambda: layers.GRU(UNITS, reset_after=False), X, {}),
    "unroll": (lambda: layers.GRU(UNITS, **SEQUENCES, unroll=True), X, {"mask": MASK}),
    "dropout": (lambda: layers.LSTM(UNITS, **BOTH), X, {"mask": MASK}),
    "dropout-of-each-gate": (lambda: layers.GRU(UNITS, **BOTH, implementation=1), X, {}),
    "simple": (lambda: layers.SimpleRNN(UNITS, **BOTH, **SEQUENCES), X, {}),
    "stateful": (lambda: layers.LSTM(UNITS, stateful=True), X, {}),
    "zeros-where-masked": (
        lambda: rnn(layers.LSTMCell(UNITS), **SEQUENCES, zero_output_for_mask=True),
        X,
        {"mask": MASK},
    ),
    "last-zero-where-masked": (
        lambda: rnn(layers.GRUCell(UNITS), zero_output_for_mask=True), X, {"mask": MASK}
    ),
    "stacked": (
        lambda: rnn(
            layers.LSTMCell(UNITS, dropout=0.2, seed=1),
            layers.GRUCell(3),
            **SEQUENCES,
            return_state=True,
        ),
        X,
        {"mask": MASK},
    ),
    "two-directions": (
        lambda: layers.Bidirectional(layers.LSTM(UNITS, **SEQUENCES)), X, {"mask": MASK}
    ),
    "sum-of-two-directions": (lambda: layers.Bidirectional(layers.GRU(UNITS), "sum"), X, {}),
    "images": (
        lambda: layers.ConvLSTM2D(2, 3, **SEQUENCES, dropout=0.2, seed=1), IMAGES, {"mask": MASK}
    ),
    "cell-of-ones-own": (
        lambda: rnn(Attending(), **SEQUENCES, return_state=True),
        X,
        {"mask": MASK},
    ),
    "inside-another-layer": (
        lambda: layers.TimeDistributed(layers.LSTM(UNITS)),
        IMAGES[..., 0],
        {},
    ),
    "bfloat16": (lambda: layers.LSTM(UNITS, dtype="mixed_bfloat16"), X, {"mask": MASK}),
}  # fmt: skip
QUICK = ("lstm", "mask", "stateful")
IN_CI = ("stacked", "unroll", "cell-of-ones-own")  # all of them
UNCUT = {
    "noise": (lambda: rnn(Noisy()), X, {"mask": MASK}),
    "noise-unrolled": (lambda: rnn(Noisy(), unroll=True), X, {}),
}


def two_passes(case, *, is_cut, jit=False):
    """Return results and gradients of two calls in training, then the variables that are not
    trained.
    """
    build, inputs, arguments = case
    keras.utils.set_random_seed(1)
    layer = build()
    layer(inputs, **arguments)
    if getattr(layer, "stateful", False):
        layer.reset_state()
    weights = [w + 0.1 * np.cos(np.arange(w.size)).reshape(w.shape) for w in layer.get_weights()]
    trained = len(layer.trainable_variables)
    layer.set_weights([*weights[:trained], *layer.get_weights()[trained:]])

    @tf.function(jit_compile=jit, autograph=False)
    def step(x):
        variables = [v.value for v in layer.trainable_variables]
        around = section_recurrent_layers() if is_cut else contextlib.nullcontext()
        with tf.GradientTape() as tape, around:
            tape.watch(x)
            results = layer(x, training=True, **arguments)
            terms = [
                tf.reduce_sum(tf.sin(3 * tf.cast(y, tf.float32))) for y in tf.nest.flatten(results)
            ]
            loss = tf.add_n(terms)
        gradients = tape.gradient(loss, [x, *variables])
        return [*tf.nest.flatten(results), *gradients]

    found = [*step(inputs), *step(inputs), *(v.value for v in layer.non_trainable_variables)]
    return [np.array(tf.cast(value, tf.float64)) for value in found]


def assert_equal_passes(case, **options):
    ours = two_passes(case, is_cut=True, **options)
    plain = two_passes(case, is_cut=False, **options)
    assert_all_close(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in QUICK
        else pytest.param(name, marks=pytest.mark.long(every_case=name in IN_CI))
        for name in CASES
    ],
)
def test_results_states_and_gradients_are_the_plain_layers(name):
    assert_equal_passes(CASES[name])


@pytest.mark.parametrize(
    "name",
    [name if name == "mask" else pytest.param(name, marks=pytest.mark.long) for name in CASES],
)
def test_so_they_are_compiled(name):
    assert_equal_passes(CASES[name], jit=True)


@pytest.mark.parametrize("name", UNCUT)
def test_a_cell_that_draws_at_each_step_draws_what_it_drew_and_this_is_said(name):
    with pytest.warns(RecomputeWarning, match="'rnn.*' all stay in memory.*draws random numbers"):
        ours = two_passes(UNCUT[name], is_cut=True)
    assert_all_close(ours, two_passes(UNCUT[name], is_cut=False), rtol=1e-5, atol=1e-6)


def test_lengths_that_are_not_known_are_said():
    layer = layers.LSTM(UNITS)
    layer.build(X.shape)

    @tf.function(autograph=False)
    def step(x):
        with section_recurrent_layers():
            return layer(x, training=True)

    with pytest.warns(RecomputeWarning, match="'lstm.*' all stay in memory.*is not fixed"):
        traced = step.get_concrete_function(tf.TensorSpec((BATCH, None, FEATURES)))
    np.testing.assert_allclose(traced(X), layer(X), rtol=1e-5, atol=1e-6)


def test_a_batch_of_any_size():
    layer = layers.LSTM(UNITS, return_sequences=True)
    layer.build(X.shape)

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape, section_recurrent_layers():
            tape.watch(x)
            y = layer(x, mask=x[..., 0] > 0, training=True)
        return y, tape.gradient(y, x)

    traced = step.get_concrete_function(tf.TensorSpec((None, TIME, FEATURES)))
    with tf.GradientTape() as tape:
        tape.watch(X)
        plain = layer(X, mask=X[..., 0] > 0)
    y, gradient = traced(X)
    np.testing.assert_allclose(y, plain, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, tape.gradient(plain, X), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_second_derivative():
    layer = layers.GRU(UNITS)
    layer.build(X.shape)

    def second(is_cut):
        @tf.function(autograph=False)
        def step(x):
            with tf.GradientTape() as outer:
                outer.watch(x)
                around = section_recurrent_layers() if is_cut else contextlib.nullcontext()
                with tf.GradientTape() as inner, around:
                    inner.watch(x)
                    y = tf.reduce_sum(tf.sin(layer(x, training=True)))
                squares = tf.reduce_sum(inner.gradient(y, x) ** 2)
            return outer.gradient(squares, x)

        return step(X)

    np.testing.assert_allclose(second(True), second(False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_a_layer_that_is_recomputed_keeps_a_state_between_sections(jit):
    layer = layers.LSTM(UNITS, return_sequences=True)
    x = numbers(BATCH, 36, FEATURES)
    layer.build(x.shape)
    rows = []

    @tf.function(jit_compile=jit, autograph=False)
    def step(x):
        with section_recurrent_layers():
            saved = kr.checkpoint(layer, policy=kr.policies.save_replay_sources)
            rows.extend(kr.saved_residuals(saved, x))
        return x

    step(x)
    kept = [row.shape for row in rows if row.kind == "operation"]
    # Six sections of six steps, with two states between each two
    assert kept == [(5, BATCH, UNITS)] * 2


def test_lengths_of_sections():
    assert sqrt_sections(256) == [(16, 16)]
    assert sqrt_sections(252) == [(14, 18)]  # 14 divides 252 and is nearest to its root, 15.9
    assert sqrt_sections(257) == [(1, 17), (15, 16)]
    assert sqrt_sections(4) == [(2, 2)]
    for steps in range(4, 400):
        lengths = sqrt_sections(steps)
        assert sum(count * length for count, length in lengths) == steps
        assert len({length for _, length in lengths}) == len(lengths) <= 2


def test_short_sequences_are_left_alone():
    layer = layers.LSTM(UNITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with section_recurrent_layers():
            short = tf.function(lambda x: layer(x, training=True))(X[:, :3])
    np.testing.assert_allclose(short, layer(X[:, :3]), rtol=1e-6, atol=1e-7)


def test_a_function_that_was_traced_outside_is_traced_again():
    layer, calls = layers.LSTM(UNITS), []

    @kr.checkpoint
    def function(x):
        calls.append(x.shape)
        return layer(x)

    def everywhere():
        function(X)
        with section_recurrent_layers():
            function(X)
            function(X)
        function(X)

    layer.build(X.shape)
    with pytest.warns(RecomputeWarning, match="changes the list 'calls'"):
        everywhere()
    assert len(calls) == 2
