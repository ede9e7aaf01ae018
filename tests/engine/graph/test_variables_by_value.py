"""A variable has one value in a call: the backward pass sees what the forward pass read, wherever
the read stands.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.capture.trace import trace
from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.policies import save_everything, save_nothing
from tests.oracle import assert_all_close, in_mode

X = np.array([0.1, 0.2], np.float32)
v = tf.Variable(2.0)
table = tf.Variable([2.0, 3.0])


def repeated(step, x):
    return tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, step(y)), (0, x), maximum_iterations=2
    )[1]


@tf.function(autograph=False)
def inner(x):
    return tf.exp(tf.sin(x * v))


def plain_read(x):
    return tf.exp(tf.sin(x * v))


def in_a_loop(x):
    return repeated(lambda y: tf.sin(y * v) * tf.gather(table, [1, 0]), x)


def in_a_branch(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(tf.sin(x * v)), lambda: x)


def in_one_of_several_branches(x):
    return tf.switch_case(tf.constant(1), [lambda: x, lambda: tf.exp(x * v) * table, lambda: x * v])


def in_a_nested_function(x):
    return inner(x)


def twice_in_a_nested_function(x):
    return inner(x) * inner(tf.sin(x))


def gathered(x):
    return tf.exp(x * tf.gather(table, [1, 0])) * tf.gather_nd(table, [[0], [1]])


def read_behind_a_loop_that_hands_it_on(x):
    return repeated(lambda y: y * v, x) * v


def a_loop_in_a_branch(x):
    return tf.cond(
        tf.reduce_sum(x) > 0, lambda: repeated(lambda y: tf.sin(y * v), x), lambda: x * table
    )


def a_nested_function_in_a_loop_in_a_branch(x):
    return tf.cond(
        tf.reduce_sum(x) > 0, lambda: repeated(lambda y: inner(y) * table, x), lambda: x * table
    )


def a_loop_that_draws(x):
    return tf.sin(tf.exp(repeated(lambda y: tf.sin(y * v) * tf.random.uniform([], 1.0, 1.0), x)))


UNDER_XLA = [
    plain_read,
    in_a_loop,
    in_a_branch,
    in_one_of_several_branches,
    in_a_nested_function,
    twice_in_a_nested_function,
    read_behind_a_loop_that_hands_it_on,
]
# XLA compiles none of the others, checkpointed or not.
FUNCTIONS = [
    *UNDER_XLA,
    gathered,
    a_loop_in_a_branch,
    a_nested_function_in_a_loop_in_a_branch,
    a_loop_that_draws,
]
CASES = [
    *((f, mode) for f in FUNCTIONS for mode in ("eager", "graph")),
    *(pytest.param(f, "jit", marks=pytest.mark.long) for f in UNDER_XLA),
]


def gradients(function, mode):
    """Return the gradients of a step that assigns the variables between its two passes, None as
    zeros.
    """

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            v.assign(7.0)
            table.assign([5.0, 7.0])
        return tape.gradient(y, [x, v, table], unconnected_gradients="zero")

    v.assign(2.0)
    table.assign([2.0, 3.0])
    return [tf.convert_to_tensor(g).numpy() for g in in_mode(mode, step)(tf.constant(X))]


@pytest.mark.parametrize(
    "policy", [save_nothing, pytest.param(save_everything, marks=pytest.mark.long)], ids=repr
)
@pytest.mark.parametrize(
    ("function", "mode"), CASES, ids=lambda case: getattr(case, "__name__", case)
)
def test_assigned_between_the_passes(function, mode, policy):
    wanted = gradients(function, mode)
    found = gradients(checkpoint(function, policy=policy), mode)
    assert_all_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_second_derivative_sees_the_value_too():
    def second(function):
        v.assign(2.0)
        x = tf.constant(X)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            v.assign(7.0)
            first = tape.gradient(y, x)
            v.assign(9.0)
        return outer.gradient(first, x).numpy()

    for function in (in_a_loop, in_a_nested_function):
        np.testing.assert_allclose(second(checkpoint(function)), second(function), rtol=1e-5)


def test_what_only_reads_stays_apart_from_what_assigns():
    counter = tf.Variable(0.0)

    def function(x):
        def step(y):
            counter.assign_add(1.0)
            return tf.sin(y * v)

        return tf.sin(tf.exp(repeated(step, x)))

    traced = trace(function, [tf.TensorSpec((2,))], target_now())
    by_variable = dict(zip((id(each) for each in traced.variables), traced.ports[1:]))
    assert by_variable[id(counter)] == ()  # by its handle
    assert [tensor.dtype for tensor in by_variable[id(v)]] == [
        tf.resource
    ]  # its value stands for the handle
    before = counter.numpy()
    gradients(checkpoint(function), "graph")
    assert counter.numpy() == before + 2  # a loop of two turns, run once


def test_a_loop_behind_an_assignment_of_what_it_reads():
    counter = tf.Variable(0.0)

    def function(x):
        counter.assign_add(1.0)
        return tf.sin(tf.exp(repeated(lambda y: tf.sin(y) * counter, x)))

    def run(function):
        counter.assign(0.5)
        with tf.GradientTape() as tape:
            x = tf.constant(X)
            tape.watch(x)
            y = function(x)
        return [y, *tape.gradient(y, [x, counter])]

    assert_all_close(run(checkpoint(function)), run(function), rtol=1e-5)


def test_an_embedding_and_a_recurrent_layer_of_keras():
    layers = keras.Sequential([keras.layers.Embedding(7, 4), keras.layers.GRU(3)])
    ids = np.array([[1, 2, 3], [4, 4, 0]])
    layers(ids)

    def run(function):
        weights = layers.get_weights()
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(function(ids) ** 2)
            layers.set_weights([w + 1 for w in weights])
        found = tape.gradient(y, [w.value for w in layers.trainable_variables])
        layers.set_weights(weights)
        return [tf.convert_to_tensor(g).numpy() for g in found]

    assert_all_close(run(checkpoint(layers)), run(layers), rtol=1e-5, atol=1e-6)
