"""Operands of products are made apart from what shares a function with them, where that spares an array."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.joint import join
from keras_recompute.engine.partition import partition
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.passes.prevent_cse import OperandsApart, with_operands_apart
from keras_recompute.engine.trace import trace
from keras_recompute.liveness import profile

from .lowered import assert_same, differentiate, numbers

ROWS, WIDTH, LAYERS = 4096, 16, 4
STATE = ROWS * WIDTH * 4  # bytes: 256 KiB
W = [tf.Variable(numbers(WIDTH, WIDTH, seed=i) * 0.3) for i in range(LAYERS)]


def layers(activation):
    def run(x):
        for w in W:
            x = activation(tf.matmul(x, w))
        return x

    return run


def of_products(function):
    """Return what a gradient without checkpoints makes apart: the types of the operations that make it."""
    with tf.Graph().as_default():
        joint = join(trace(function, [tf.TensorSpec((ROWS, WIDTH))], target_now()))
        program = with_operands_apart(partition(joint, None).backward, joint)
        return [t.op.type for t in program.first.outputs] if isinstance(program, OperandsApart) else []


@pytest.mark.parametrize(
    ("activation", "kinds"),
    [
        # The first layer's operand is the input, and the last layer's result is no operand.
        (tf.nn.gelu, ["Mul"] * (LAYERS - 1)),
        (lambda x: x * tf.math.erf(x), ["Mul"] * (LAYERS - 1)),
        (lambda x: tf.nn.gelu(x, approximate=True), ["Mul"] * (LAYERS - 1)),
    ],
    ids=["gelu", "erf", "gelu by tanh"],
)
def test_a_function_that_the_slope_reads_too_is_made_twice(activation, kinds):
    assert of_products(layers(activation)) == kinds


@pytest.mark.parametrize(
    "activation", [tf.tanh, tf.sigmoid, tf.nn.relu, lambda x: x * x], ids=["tanh", "sigmoid", "relu", "square"]
)
def test_what_costs_nothing_or_is_read_itself_is_made_once(activation):
    assert of_products(layers(activation)) == []


@pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
def test_gradients_are_those_of_the_plain_function(jit):
    x = numbers(6, WIDTH)
    ours = differentiate(kr.checkpoint(layers(tf.nn.gelu)), [x], W, jit=jit)
    assert_same(ours, differentiate(layers(tf.nn.gelu), [x], W), relative=5e-6)


def test_the_slope_of_a_gelu_takes_one_array_beside_its_input_and_gradient():
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(kr.checkpoint(layers(tf.nn.gelu))(x) ** 2)
        return tape.gradient(loss, W)

    program = profile(step, tf.TensorSpec((ROWS, WIDTH)))
    # LAYERS products, the gradient that comes in, the operand of a product, and the gradient that goes out
    assert program.not_always_live_peak_bytes < (LAYERS + 3.1) * STATE, np.round(program.not_always_live_peak_bytes / STATE, 1)
