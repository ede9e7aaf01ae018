"""Sections on parts of a sequence, which call the same layers, as one ``jax.lax.scan``."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax_loops import loops_in, step_of, weights_of
from plain_oracle import assert_trains_as_plain

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError

L = keras.layers
RNG = np.random.default_rng(0)
TIME, FEATURES, UNITS = 10, 6, 3
X = RNG.normal(size=(3, TIME, FEATURES)).astype("float32")
Y = RNG.normal(size=(3, TIME, 1)).astype("float32")
EVENLY = [(start, start + 2) for start in range(0, TIME, 2)]


def recurrent(spans=EVENLY, *, before=None, make=L.LSTM, **options):
    """Return a network of one recurrent layer that reads parts of a sequence, in this order.

    ``before`` is a layer that makes the sequence.
    """
    layer = make(UNITS, return_sequences=True, return_state=True, **options)
    inputs = keras.Input((TIME, FEATURES))
    sequence = before(inputs) if before else inputs
    parts, states = [], None
    for span in spans:
        part, *states = layer(kr.TimeSlice(*span)(sequence), initial_state=states)
        parts.append(part)
        if span is not spans[-1]:
            states = kr.RecomputationCheckpoint()(states)
    return keras.Model(inputs, L.Dense(1)(L.Concatenate(axis=1)(parts)))


# Of five parts the last is not recomputed: four are a loop. Those over timesteps have length 2.
@pytest.mark.parametrize("make", [kr.LSTM, L.GRU])
def test_parts_are_a_loop_and_train_as_plain_keras(make):
    def build():
        return recurrent(make=make)

    assert 4 in loops_in(kr.checkpointed(build()), X)
    assert_trains_as_plain(build, X, Y, kr.checkpointed)


def test_a_sequence_that_layers_make_has_its_gradient():
    def build():
        return recurrent(before=L.Dense(FEATURES, "tanh"))

    # The first section has the layer in front as well.
    assert 3 in loops_in(kr.checkpointed(build()), X)
    assert_trains_as_plain(build, X, Y, kr.checkpointed)


def test_an_input_that_is_differentiated_has_its_gradient():
    plain = recurrent()
    ours = kr.checkpointed(plain)

    def gradient(model):
        state = [v.value for v in model.non_trainable_variables]

        def loss(x):
            outputs, _ = model.stateless_call(weights_of(model), state, x, training=True)
            return jnp.mean(outputs**2)

        return jax.jit(jax.grad(loss))(X)

    np.testing.assert_allclose(gradient(ours), gradient(plain), rtol=1e-5, atol=1e-7)


# No part of other lengths has four timesteps, which would be a loop of four as well.
OTHERS = {
    "one is longer": [(0, 2), (2, 4), (4, 7), (7, 8), (8, 10)],
    "backwards": EVENLY[::-1],
    "with gaps": [(0, 2), (3, 5), (5, 7), (6, 8), (8, 10)],
}


@pytest.mark.parametrize("name", OTHERS)
def test_parts_that_do_not_follow_one_another_are_told_apart(name):
    assert 4 not in loops_in(kr.checkpointed(recurrent(OTHERS[name])), X)
    targets = Y[:, : sum(stop - start for start, stop in OTHERS[name])]
    assert_trains_as_plain(lambda: recurrent(OTHERS[name]), X, targets, kr.checkpointed)


def test_masks_that_each_part_draws_are_drawn_in_order():
    def build():
        return recurrent(dropout=0.3, seed=5)

    assert not {3, 4}.intersection(loops_in(kr.checkpointed(build()), X))
    assert_trains_as_plain(build, X, Y, kr.checkpointed)


@pytest.fixture
def half_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize("before", [None, L.Dense], ids=["input", "made"])
def test_slices_have_half_precision_in_a_loop_too(before):
    def build():
        return recurrent(before=before and before(FEATURES, "tanh"))

    assert {3, 4}.intersection(loops_in(kr.checkpointed(build()), X))
    assert_trains_as_plain(build, X, Y, kr.checkpointed, tolerance=2e-3)


def test_a_short_sequence_is_refused_in_a_loop_too():
    inputs = keras.Input((None, FEATURES))
    layer = L.LSTM(UNITS, return_state=True)
    states = None
    for start in range(0, TIME, 2):
        part = kr.TimeSlice(start, start + 2)(inputs)
        _, *states = layer(part, initial_state=states)
        states = kr.RecomputationCheckpoint()(states)
    model = kr.Model(inputs, L.Dense(1)(states[0]))
    with pytest.raises(InvalidArgumentError, match="has only 4"):
        step_of(model, X[:, :4])(weights_of(model))


def test_memory_and_the_program_hardly_grow_with_the_number_of_parts():
    """The slices of the model's inputs are taken in the loop, and no part is kept."""
    length, units = 256, 32
    x = np.ones((16, length, 64), "float32")

    def program(parts):
        layer = kr.LSTM(units, return_sequences=True, return_state=True)
        inputs = keras.Input(x.shape[1:], batch_size=16)
        step, outputs, states = length // parts, [], None
        for start in range(0, length, step):
            part, *states = layer(kr.TimeSlice(start, start + step)(inputs), initial_state=states)
            outputs.append(part)
            if start + step < length:
                states = kr.RecomputationCheckpoint()(states)
        model = kr.Model(inputs, L.Dense(1)(L.Concatenate(axis=1)(outputs)))
        return step_of(model, x).lower(weights_of(model)).compile()

    few, many = program(4), program(32)
    needed, before = (each.memory_analysis().temp_size_in_bytes for each in (many, few))
    assert needed < 0.6 * before, f"{needed:,} bytes with 32 parts, {before:,} with 4"
    instructions = [each.as_text().count(" = ") for each in (few, many)]
    # The results of parts are put together one by one: a few instructions for each.
    assert instructions[1] < 1.5 * instructions[0], instructions
