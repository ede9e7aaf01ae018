"""On a TPU the section behind the last checkpoint runs in the loop of the equal ones before it,
where there are many.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.backends import CPU, TPU, tracing_for
from keras_recompute.engine.passes import leaving_out

LAYERS = keras.layers
SEQUENCES = np.random.default_rng(0).normal(size=(2, 32, 3)).astype("float32")


def joined(outputs, _):
    return LAYERS.Dense(1)(LAYERS.Concatenate(axis=1)(outputs))


def last_state(_, state):
    return LAYERS.Concatenate()(state)


def with_a_head(outputs, _):
    return LAYERS.Dense(1)(outputs[-1])


def network(sections: int, end=joined) -> kr.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 3), batch_size=2)
    layer, state, outputs = kr.LSTM(4, return_sequences=True, return_state=True), None, []
    for begin in range(0, 32, 32 // sections):
        y, *state = layer(kr.TimeSlice(begin, begin + 32 // sections)(inputs), initial_state=state)
        outputs.append(y)
        if begin + 32 // sections < 32:
            state = kr.RecomputationCheckpoint()(state)
    return kr.Model(inputs, end(outputs, state))


def step_of(model: keras.Model):
    weights = [v.value for v in model.trainable_variables]

    @tf.function(jit_compile=True, autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(model(x, training=True)))
        return loss, *tape.gradient(loss, [x, *weights])

    return step


def loops(model: keras.Model, backend: str = TPU) -> int:
    """Return the number of loops in a step, bodies aside: what they are worth the compiler of a TPU
    tells, where it is.
    """
    with tracing_for(backend):
        graph = step_of(model).get_concrete_function(tf.TensorSpec((2, 32, 3))).graph
    return [operation.type for operation in graph.get_operations()].count("StatelessWhile")


@pytest.mark.long
@pytest.mark.parametrize("end", [joined, last_state])
def test_values_and_gradients_are_those_of_keras(end):
    ours = network(16, end)
    inputs = keras.Input((32, 3), batch_size=2)
    y, *state = LAYERS.LSTM(4, return_sequences=True, return_state=True)(inputs)
    plain = keras.Model(inputs, LAYERS.Dense(1)(y) if end is joined else last_state([], state))
    plain.set_weights(ours.get_weights())
    with tracing_for(TPU):
        found = step_of(ours)(tf.constant(SEQUENCES))
    for one, other in zip(found, step_of(plain)(tf.constant(SEQUENCES)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


# Over the sections, forward and backward; and over the steps of the section behind them.
ROLLED, WITH_A_TURN_BEHIND = (
    2,
    4,
)


@pytest.mark.long
def test_the_last_section_joins_the_others_on_a_tpu():
    assert loops(network(16)) == ROLLED
    # The backward one behind stands in a branch.
    assert loops(network(16), CPU) == WITH_A_TURN_BEHIND - 1
    with leaving_out("rerolling"):
        assert loops(network(16)) == WITH_A_TURN_BEHIND


def test_among_few_it_stays_behind_them_where_it_needs_no_replay():
    assert loops(network(8)) == WITH_A_TURN_BEHIND


def test_one_that_is_not_equal_stays_behind():
    assert loops(network(16, with_a_head)) == WITH_A_TURN_BEHIND


def test_in_loops_of_loops_sections_stay_as_they_divide():
    model = network(16)
    model.recomputation_levels = 2
    assert loops(model) == WITH_A_TURN_BEHIND
