"""Nothing that a use of checkpoint or of a scope makes outlives what it belongs to.

Counted over 1,000 uses.
"""

from __future__ import annotations

import gc
import resource
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.partition.scopes import keep_scope, recompute_scope
from keras_recompute.engine.policies import save_everything

X = tf.ones((4, 4))


def scoped(x):
    with recompute_scope():
        y = tf.sin(x)
    with keep_scope():
        z = tf.exp(y)
    return z * y


def step(section):
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = section(X)
    return tape.gradient(y, X)


def alive() -> tuple[int, int]:
    """Return how many graphs there are, and how many gradients TensorFlow's registry holds."""
    gc.collect()
    return sum(isinstance(o, FuncGraph) for o in gc.get_objects()), len(
        ops.gradient_registry.list()
    )


@pytest.mark.long
def test_a_thousand_calls_of_one_function():
    section = checkpoint(scoped, policy=save_everything)
    step(section)
    before = alive()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        step(section)
    assert alive() == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 20 * 1024, (
        "the process grew by 20 MiB or more"
    )


@pytest.mark.long
def test_a_wrapper_per_call_finds_the_programs_of_its_function():
    step(checkpoint(scoped, policy=save_everything))
    before = alive()
    for _ in range(1000):
        step(checkpoint(scoped, policy=save_everything))
    assert alive() == before


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*is created again")
def test_functions_that_come_and_go():
    """A closure per call over a variable of its own: each is traced, and goes with the variable and
    its graphs.
    """

    def once(n):
        scale = tf.Variable(float(n))
        step(checkpoint(lambda x: tf.exp(tf.sin(x)) * scale))

    once(0)
    before = alive()
    for n in range(1, 31):
        once(n)
    assert alive() == before


@pytest.mark.long
def test_a_graph_takes_its_programs_with_it():
    def trace():
        function = tf.function(
            lambda x: step(checkpoint(scoped, policy=save_everything)) * x, autograph=False
        )
        return weakref.ref(function.get_concrete_function(X).graph)

    trace()
    before = alive()
    graphs = [trace() for _ in range(5)]
    assert alive() == before
    assert [graph() for graph in graphs] == [None] * 5


def test_arguments_of_past_calls_are_not_kept():
    section = checkpoint(lambda nest: tf.exp(tf.sin(nest["x"])))
    x = tf.constant(np.ones((4, 4), np.float32))
    gone = weakref.ref(x)
    section({"x": x})
    del x
    gc.collect()
    assert gone() is None
