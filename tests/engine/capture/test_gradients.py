"""Values and every gradient of a function that goes through the engine equal those of the function
itself.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.graph.annotations import checkpoint_name
from keras_recompute.engine.policies import save_everything, save_names, save_nothing
from tests.oracle import assert_all_close, gradient_step, numbers

from ..engine_vs_plain import Result, assert_same, differentiate, through_engine

W = tf.Variable(numbers(4, 4, seed=1), name="w")
V = tf.Variable(numbers(4, 3, seed=2), name="v")
TABLE = tf.Variable(numbers(7, 4, seed=3), name="table")
FIXED = tf.constant(numbers(4, seed=4))


def chain(x):
    """Nothing is read twice, so additions happen in one order only."""
    return tf.matmul(tf.tanh(tf.matmul(x, W)), V)


def named_chain(x):
    return tf.matmul(tf.tanh(checkpoint_name(tf.matmul(x, W), "product")), V)


def shared(x):
    y = tf.sin(x) * x
    return tf.matmul(y, W) + tf.matmul(x * FIXED, W), tf.reduce_mean(y)


def nested_output(x):
    y = tf.exp(x * 0.1)
    return {"a": [y, y * y], "b": (tf.reduce_sum(y, axis=0),)}


def with_integers(x, ids):
    rows = tf.gather(TABLE, ids)
    return x + rows, ids * 2, tf.cast(x > 0, tf.int32)


def unused_argument(x, y):
    del y
    return tf.sin(x)


def passes_through(x):
    return x, tf.cos(x)


def in_while_loop(x):
    def body(i, h):
        return i + 1, tf.tanh(tf.matmul(h, W) + x)

    return tf.while_loop(lambda i, _: i < 4, body, (0, tf.zeros_like(x)), maximum_iterations=4)[1]


def in_cond(x):
    big = tf.reduce_sum(x) > 0.0
    return tf.cond(big, lambda: tf.matmul(x, W), lambda: tf.matmul(tf.exp(x), W) * 2.0)


def with_array(x):
    store = tf.TensorArray(tf.float32, 3, element_shape=x.shape)
    for i in range(3):
        store = store.write(i, tf.sin(x * (i + 1.0)))
    return store.stack()


def read_three_times(x):
    return tf.matmul(tf.matmul(tf.matmul(x, W), W), tf.transpose(W))


def calls_a_function(x):
    inner = tf.function(lambda y: tf.matmul(tf.tanh(y), W), autograph=False)
    return inner(inner(x))


def with_custom_gradient(x):
    @tf.custom_gradient
    def doubled_gradient(y):
        return tf.sin(y), lambda dy: dy * 2.0 * tf.cos(y)

    return doubled_gradient(tf.matmul(x, W))


X = numbers(5, 4)
CASES = {
    # name: (function, arguments, variables, allowed relative difference without jit)
    "chain": (chain, [X], [W, V], 0.0),
    "shared": (shared, [X], [W], 1e-6),
    "nested_output": (nested_output, [X], [], 1e-6),
    "with_integers": (with_integers, [X, np.array([0, 3, 3, 6, 1], "int32")], [TABLE], 1e-6),
    "unused_argument": (unused_argument, [X, numbers(2)], [W], 0.0),
    "passes_through": (passes_through, [X], [], 0.0),
    "in_while_loop": (in_while_loop, [X], [W], 1e-6),
    "in_cond": (in_cond, [X], [W], 0.0),
    "in_other_branch": (in_cond, [-np.abs(X)], [W], 0.0),
    "with_array": (with_array, [X], [], 1e-6),
    "read_three_times": (read_three_times, [X], [W], 1e-6),
    "calls_a_function": (calls_a_function, [X], [W], 1e-6),
    "with_custom_gradient": (with_custom_gradient, [X], [W], 0.0),
}


@pytest.fixture(scope="module")
def plain_result():
    """Return a function that computes the plain result of a case once."""
    known: dict[str, Result] = {}

    def result(name: str) -> Result:
        if name not in known:
            function, arguments, variables, _ = CASES[name]
            known[name] = differentiate(function, arguments, variables)
        return known[name]

    return result


@pytest.mark.parametrize(
    "policy", [save_nothing, save_everything], ids=["save_nothing", "save_everything"]
)
@pytest.mark.parametrize("name", CASES)
def test_without_jit(name, policy, plain_result):
    function, arguments, variables, relative = CASES[name]
    assert_same(
        differentiate(through_engine(function, policy), arguments, variables),
        plain_result(name),
        relative=relative,
    )


@pytest.mark.parametrize("name", CASES)
def test_with_jit(name, plain_result):
    function, arguments, variables, _ = CASES[name]
    assert_same(
        differentiate(through_engine(function), arguments, variables, jit=True),
        plain_result(name),
        relative=1e-6,
    )


@pytest.mark.parametrize("policy", [save_names("product"), save_names("nothing of that name")])
def test_saving_by_name_changes_no_number(policy):
    plain = differentiate(named_chain, [X], [W, V])
    assert_same(differentiate(through_engine(named_chain, policy), [X], [W, V]), plain)


@pytest.mark.parametrize("kept_by_caller", [(), (0,), (0, 1)])
def test_outputs_at_hand_change_no_number(kept_by_caller):
    plain = differentiate(shared, [X], [W])
    assert_same(
        differentiate(through_engine(shared, kept_by_caller=kept_by_caller), [X], [W]),
        plain,
        relative=1e-6,
    )


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_floating_types(dtype):
    def function(x):
        return tf.tanh(x) * tf.cast(FIXED, dtype)

    x = tf.cast(X, dtype)
    assert_same(differentiate(through_engine(function), [x]), differentiate(function, [x]))


def test_a_tensor_of_the_graph_around_it_gets_its_gradient():
    """The function closes over ``outer``, a tensor of the graph that calls it."""

    def plain(x):
        outer = tf.sin(x)
        return tf.matmul(x * outer, W)

    def ours(x):
        outer = tf.sin(x)
        return through_engine(lambda y: tf.matmul(y * outer, W))(x)

    assert_same(differentiate(ours, [X], [W]), differentiate(plain, [X], [W]), relative=1e-6)


def test_called_twice_the_gradients_add_up():
    def plain(x):
        return chain(tf.matmul(chain(x), tf.transpose(V)))

    def ours(x):
        section = through_engine(chain)
        (y,) = section(x)
        return section(tf.matmul(y, tf.transpose(V)))

    assert_same(differentiate(ours, [X], [W, V]), differentiate(plain, [X], [W, V]), relative=1e-6)


def test_nested_in_itself():
    """A function that goes through the engine may hold another that does."""
    inner = through_engine(chain)
    ours = through_engine(lambda x: tf.sin(inner(tf.cos(x))[0]))
    plain = differentiate(lambda x: tf.sin(chain(tf.cos(x))), [X], [W, V])
    assert_same(differentiate(ours, [X], [W, V]), plain)


def test_the_backward_pass_sees_the_variable_that_the_forward_pass_saw():
    """An optimiser inside the program changes the variable between the forward and the backward
    pass.
    """
    x, before = tf.constant(X), W.numpy()

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            (y,) = through_engine(lambda x: tf.tanh(tf.matmul(x, W)))(x)
            loss = tf.reduce_sum(y)
        with tf.control_dependencies([loss]):
            W.assign(tf.zeros_like(W))
        return tape.gradient(loss, W)

    try:
        expected = X.T @ (1 - np.tanh(X @ before) ** 2)
        np.testing.assert_allclose(step(), expected, rtol=1e-5, atol=1e-6)
    finally:
        W.assign(before)


@pytest.mark.parametrize("jit", [False, True])
def test_an_unknown_batch_size(jit):
    section = through_engine(lambda x: tf.matmul(tf.tanh(tf.matmul(x, W)), V))

    step = gradient_step(lambda x: section(x)[0], weights=[W, V])
    signature = [tf.TensorSpec((None, 4))]
    gradient = tf.function(step, input_signature=signature, jit_compile=jit, autograph=False)
    for batch in (2, 5):
        x = tf.constant(X[:batch])
        expected = gradient_step(chain, weights=[W, V])(x)
        assert_all_close(gradient(x), expected, rtol=1e-5, atol=1e-5)


def test_a_tape_makes_zeros_for_no_input():
    """A tape makes them for all that a call returns and nobody differentiates, which is to be the
    results alone.
    """
    run = through_engine(lambda x, *weights: (tf.add_n([x, *weights]), tf.cos(x)))

    def zeros_made(inputs):
        @tf.function(autograph=False)
        def step(*inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                used, _ = run(*inputs)
            return tape.gradient(used, inputs)

        operations = step.get_concrete_function(
            *[tf.TensorSpec((3, 1000))] * inputs
        ).graph.get_operations()
        return sum(op.type in ("Fill", "ZerosLike") for op in operations)

    assert zeros_made(20) == zeros_made(2)
