"""Functions that are made anew at each call find the program of what they are made of, and of
nothing else.
"""

from __future__ import annotations

import functools
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

import keras_recompute as kr
from tests.oracle import assert_all_close, loss_and_gradients

KERNEL = tf.Variable(np.random.default_rng(0).normal(size=(4, 4)) / 2.0)
OTHER = tf.Variable(np.random.default_rng(1).normal(size=(4, 4)) / 2.0)
X = tf.constant(np.random.default_rng(2).normal(size=(2, 4)))
factor = 1.0


def work(x, scale):
    return tf.tanh(tf.sin(x @ KERNEL) @ KERNEL) * scale


class Block:
    def __init__(self, kernel, scale):
        self.kernel, self.scale = kernel, scale

    def __call__(self, x):
        return tf.tanh(tf.sin(x @ self.kernel) @ self.kernel) * self.scale

    def forward(self, x):
        return self(x)


def closure(kernel, scale):
    def inner(x):
        return tf.tanh(tf.sin(x @ kernel) @ kernel) * scale

    return inner


def closure_of_a_closure(kernel, scale):
    def helper(x):
        return tf.sin(x @ kernel) * scale

    return lambda x: tf.tanh(helper(x) @ kernel)


def over_a_list(kernel, scale):
    kernels = [kernel, OTHER]

    def inner(x):
        for each in kernels:
            x = tf.tanh(tf.sin(x @ each))
        return x * scale

    return inner


ANEW = [
    closure,
    closure_of_a_closure,
    over_a_list,
    lambda kernel, scale: lambda x, scale=scale: tf.tanh(tf.sin(x @ kernel) @ kernel) * scale,
    lambda _, scale: functools.partial(work, scale=scale),
    Block,
    lambda kernel, scale: Block(kernel, scale).forward,
]
NAMES = ["closure", "closure_of_a_closure", "over_a_list", "default", "partial", "object", "method"]


def gradients(function, scale):
    return loss_and_gradients(
        lambda _: function(X), scale, mode="eager", of_inputs=True, weights=[KERNEL]
    )


def graphs():
    gc.collect()
    return sum(isinstance(o, FuncGraph) for o in gc.get_objects())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=() if name == "closure" else pytest.mark.long)
        for make, name in zip(ANEW, NAMES)
    ],
)
def test_what_is_made_anew_finds_its_program(make):
    """With the values and gradients of what it captures at each call."""
    before = None
    for number in range(4):
        scale = tf.constant(1.0 + number, tf.float64)
        found = gradients(kr.checkpoint(make(KERNEL, scale)), scale)
        assert_all_close(found, gradients(make(KERNEL, scale), scale), rtol=1e-9)
        before = before or graphs()
    assert graphs() == before


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
@pytest.mark.parametrize("make", [closure, Block], ids=["closure", "object"])
def test_so_it_does_in_a_graph(make, jit):
    def both(wrap):
        def run(*scales):
            found = [gradients(wrap(make(KERNEL, scale)), scale) for scale in scales]
            return [t for each in found for t in each]

        return tf.function(run, jit_compile=jit)(
            tf.constant(1.5, tf.float64), tf.constant(2.0, tf.float64)
        )

    assert_all_close(both(kr.checkpoint), both(lambda function: function), rtol=1e-9)


def test_what_captures_something_else_is_another_program():
    for kernel in (KERNEL, OTHER):
        for scale in (2.0, 3.0, np.float64(4.0), -0.0):
            for make in (closure, Block):
                np.testing.assert_allclose(
                    kr.checkpoint(make(kernel, scale))(X), make(kernel, scale)(X), rtol=1e-9
                )


def test_globals_and_defaults_that_change_are_seen():
    global factor

    def function(x, power=1.0):
        return tf.sin(tf.sin(x)) * factor * power

    wrapped, plain = kr.checkpoint(function), np.sin(np.sin(X))
    for factor in (2.0, 3.0):
        np.testing.assert_allclose(wrapped(X), plain * factor, rtol=1e-9)
    function.__defaults__ = (5.0,)
    np.testing.assert_allclose(wrapped(X), plain * 15.0, rtol=1e-9)


def test_a_closed_over_number_that_is_set_from_outside_is_seen():
    number = 2.0
    wrapped = kr.checkpoint(lambda x: tf.sin(tf.sin(x)) * number)
    wrapped(X)
    number = 3.0
    np.testing.assert_allclose(wrapped(X), np.sin(np.sin(X)) * 3.0, rtol=1e-9)


def test_an_object_changes_as_by_a_plain_call():
    class Counting(Block):
        calls = 0

        def forward(self, x):
            self.calls += 1
            self.last = super().__call__(x) * self.calls
            return self.last

    def run(wrap):
        block = Counting(KERNEL, tf.constant(2.0, tf.float64))
        results = [wrap(block.forward)(X) for _ in range(3)]
        return [*results, block.last, block.calls]

    assert_all_close(run(kr.checkpoint), run(lambda function: function), rtol=1e-9)


def test_programs_go_with_what_was_captured():
    def use():
        layer = keras.layers.Dense(4, "tanh")
        layer.build((2, 4))
        kr.checkpoint(lambda x: tf.sin(layer(x)))(X)
        return weakref.ref(layer)

    gone = use()
    gc.collect()
    assert gone() is None


def test_captured_tensors_of_past_calls_are_not_kept():
    scale = tf.constant(np.ones((4, 4)))
    gone = weakref.ref(scale)
    kr.checkpoint(closure(KERNEL, scale[0]))(X)
    kr.checkpoint(closure(KERNEL, scale))
    del scale
    gc.collect()
    assert gone() is None


def over_a_layer(_):
    layer = keras.layers.Rescaling(2.0)
    return lambda x: tf.sin(layer(x))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda n: lambda x: tf.sin(tf.sin(x)) * n,
            "captured 'n' differs each time \\(now the int 8\\)",
        ),
        (over_a_layer, "captured 'layer' differs each time \\(now Rescaling\\)"),
    ],
    ids=["number", "layer"],
)
def test_it_is_said_why_a_function_is_traced_again(make, says):
    for number in range(8):
        kr.checkpoint(make(number))(X)
    with pytest.warns(kr.errors.RecomputeWarning, match=says) as found:
        kr.checkpoint(make(8))(X)
    assert found[0].filename == __file__
