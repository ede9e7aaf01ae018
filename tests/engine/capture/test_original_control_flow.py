"""Loops and branches of which a forward pass saves nothing stay as they were traced."""

import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from tests.oracle import assert_all_close, loss_and_gradients, loss_step

X = np.array([0.1, 0.2, 0.3, -0.9], np.float32)


def bounded_loop(x):
    body = lambda i, h: (i + 1, tf.sin(h * h))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 3, body, (0, x), maximum_iterations=3)[1]


def unbounded_loop(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.sin(h * h)), (0, x))[1]


def branch(x):
    return tf.cond(tf.reduce_sum(x) < 0, lambda: tf.sin(x * x), lambda: x)


def loop_of_branches(x):
    return tf.while_loop(
        lambda i, _: i < 3, lambda i, h: (i + 1, branch(h)), (0, x), maximum_iterations=3
    )[1]


def training(function, *, jit, policy):
    """Return the graph function of a step of ``function`` under a checkpoint: its results and its
    gradient.
    """

    step = loss_step(kr.checkpoint(function, policy=policy), of_inputs=True, loss=tf.exp)
    compiled = tf.function(step, jit_compile=jit, autograph=False)
    return compiled.get_concrete_function(tf.TensorSpec(X.shape))


def results_of_forward(program):
    """Return how many results the loop or branch of the forward pass has, with those that only a
    gradient could read.
    """
    (count,) = (
        len(op.outputs)
        for op in program.graph.get_operations()
        if "recomputation.forward" in op.name and ("While" in op.type or "If" in op.type)
    )
    return count


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
@pytest.mark.parametrize(
    ("function", "results"), [(bounded_loop, 4), (loop_of_branches, 4), (branch, 1)]
)
def test_what_the_gradient_reads_is_not_made_in_the_forward_pass(function, results, jit):
    """A loop of one variable has two counters, a bound, and the variable; a branch its value."""
    program = training(function, jit=jit, policy=kr.policies.save_nothing)
    assert results_of_forward(program) == results
    plain = loss_and_gradients(function, X, mode="eager", of_inputs=True, loss=tf.exp)
    assert_all_close(program(tf.constant(X)), plain, rtol=1e-6)


def test_what_a_policy_saves_of_a_loop_is_made_there():
    kept = training(bounded_loop, jit=False, policy=kr.policies.save_everything)
    assert results_of_forward(kept) > 4


def test_xla_compiles_an_unbounded_loop_whose_gradient_nobody_asks_for():
    """XLA has no lists of unknown length.

    The inner checkpoint is differentiated when it is traced, not when it is needed.
    """

    def function(x):
        return tf.sin(tf.sin(x)) + tf.stop_gradient(kr.checkpoint(unbounded_loop)(x))

    @tf.function(jit_compile=True, autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = kr.checkpoint(function)(x)
        return y, tape.gradient(y, x)

    y, gradient = step(tf.constant(X))
    np.testing.assert_allclose(y, np.sin(np.sin(X)) + unbounded_loop(tf.constant(X)), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.cos(np.sin(X)) * np.cos(X), rtol=1e-6)
