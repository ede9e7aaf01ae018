"""Nothing behind the fence runs before what it waits for, and the fence changes no value."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.graph.opaque_values import _NEVER, materialize
from keras_recompute.engine.graph.target_ops import fenced
from keras_recompute.engine.passes import target_now
from tests.oracle import assert_all_close

JIT = pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])


def behind_fence(tokens, *, jit):
    @tf.function(jit_compile=jit, autograph=False)
    def run(x, *tokens):
        return fenced(
            lambda inputs: [tf.sin(inputs[0]), inputs[0] * 2.0],
            [x],
            after=tokens,
            like=[x, x],
            target=target_now(),
        )

    return run(tf.constant([0.5, 1.0]), *tokens)


ORDINARY = {
    "zero": [tf.zeros(3)],
    "several": [tf.ones(3), tf.zeros((2, 2))],
    "nan": [tf.fill([2], float("nan"))],
    "infinite": [tf.fill([2], float("-inf"))],
    "double": [tf.ones(2, tf.float64)],
    "half": [tf.fill([2], tf.constant(float("nan"), tf.float16))],
    "bfloat16": [tf.cast(tf.ones(2), tf.bfloat16)],
    "scalar": [tf.constant(1.0)],
    "empty": [tf.zeros((0, 3))],
    "empty and not": [tf.zeros((0, 3)), tf.ones(2)],
    "none": [],
}


@JIT
@pytest.mark.parametrize("name", ORDINARY)
def test_values_behind_a_fence_are_the_same(name, jit):
    sine, double = behind_fence(ORDINARY[name], jit=jit)
    np.testing.assert_allclose(sine, np.sin([0.5, 1.0]), rtol=1e-6)
    np.testing.assert_allclose(double, [1.0, 2.0])


@pytest.mark.parametrize(
    "value",
    [[0.5, 1.0], [[float("nan")]], 2.0, np.zeros((0, 2))],
    ids=["vector", "nan", "scalar", "empty"],
)
def test_an_array_is_the_same_and_so_are_its_derivatives(value):
    @tf.function(jit_compile=True, autograph=False)
    def run(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = materialize(x**3, [tf.sin(x)])
            slope = inner.gradient(y, x)
        return y, slope, outer.gradient(slope, x)

    x = tf.constant(value, tf.float64)
    assert_all_close(run(x), (x**3, 3 * x**2, 6 * x), rtol=1e-12)


def test_arrays_of_one_shape_share_their_functions():
    @tf.function(jit_compile=True, autograph=False)
    def run(x):
        for _ in range(3):
            x = materialize(x + 1.0, [x])
        return materialize(x[:1], [x])

    graph = run.get_concrete_function(tf.TensorSpec([2])).graph.as_graph_def()
    # Of two shapes; of each the function that hands on, and the one that negates it.
    assert len(graph.library.function) == 2 * 2


@JIT
def test_a_list_and_a_handle_are_waited_for_by_what_stands_beside_them(jit):
    """Keras's own loops leave such behind: they have no first element that could be looked at."""
    variable = tf.Variable(3.0)

    @tf.function(jit_compile=jit, autograph=False)
    def run(x):
        steps = tf.raw_ops.TensorListReserve(
            element_shape=[2], num_elements=1, element_dtype=tf.float32
        )
        steps = tf.raw_ops.TensorListSetItem(input_handle=steps, index=0, item=x)

        def read(_):
            first = tf.raw_ops.TensorListGetItem(
                input_handle=steps, index=0, element_shape=[2], element_dtype=tf.float32
            )
            return [first * variable]

        return fenced(read, [x], after=[steps, variable.handle, x], like=[x], target=target_now())

    np.testing.assert_array_equal(run(tf.constant([0.5, 1.0]))[0], [1.5, 3.0])


def test_the_one_pattern_that_no_arithmetic_makes_opens_the_other_branch():
    """So the branch is a real one, which no compiler may take as decided.

    The other one hands on what it was given.
    """
    token = np.array([_NEVER], np.int32).view(np.float32)
    assert np.isnan(token).all()
    sine, double = behind_fence([tf.constant(token)], jit=True)
    np.testing.assert_array_equal(sine, [0.5, 1.0])
    np.testing.assert_array_equal(double, [0.5, 1.0])


def test_without_xla_a_control_edge_holds_the_order():
    @tf.function(autograph=False)
    def run(x, token):
        return fenced(
            lambda inputs: [tf.sin(inputs[0])],
            [x],
            after=[tf.exp(token)],
            like=[x],
            target=target_now(),
        )

    graph = run.get_concrete_function(tf.TensorSpec((2,)), tf.TensorSpec((2,))).graph
    (sine,) = (op for op in graph.get_operations() if op.type == "Sin")
    assert [op.type for op in sine.inputs[0].op.control_inputs] == ["Exp"]


def test_the_body_is_written_once():
    written = []

    @tf.function(jit_compile=True, autograph=False)
    def run(x):
        return fenced(
            lambda inputs: (written.append(1), [tf.sin(inputs[0])])[1],
            [x],
            after=[x],
            like=[x],
            target=target_now(),
        )

    run(tf.ones(2))
    assert len(written) == 1


def test_a_fence_that_waits_for_many_takes_few_operations_for_each():
    """It waits for all weight gradients, and what stands in a graph stays in the process."""

    def operations(count):
        @tf.function(jit_compile=True, autograph=False)
        def run(x, *tokens):
            return fenced(
                lambda inputs: [tf.sin(inputs[0])], [x], after=tokens, like=[x], target=target_now()
            )

        spec = tf.TensorSpec((2, 3))
        return len(run.get_concrete_function(spec, *[spec] * count).graph.get_operations())

    per_token = 2  # its placeholder, and a slice of one element
    assert operations(50) == operations(10) + 40 * per_token
