"""Operands of products are made apart from what shares a function with them, where that spares an
array.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.capture.joint_graph import join
from keras_recompute.engine.capture.trace import trace
from keras_recompute.engine.partition.partition import partition
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.passes.prevent_cse import duplicate_matmul_operands
from keras_recompute.liveness import profile
from tests.oracle import gradient_step, numbers

from ..engine_vs_plain import assert_same, differentiate

ROWS, WIDTH, LAYERS = 4096, 16, 4
STATE = ROWS * WIDTH * 4  # bytes: 256 KiB
W = [tf.Variable(numbers(WIDTH, WIDTH, seed=i) * 0.3) for i in range(LAYERS)]


def layers(activation):
    def run(x):
        for w in W:
            x = activation(tf.matmul(x, w))
        return x

    return run


def of_products(function, shape=(ROWS, WIDTH)):
    """Return what a gradient without checkpoints makes apart: the types of the operations that make
    it.
    """
    with tf.Graph().as_default():
        joint = join(trace(function, [tf.TensorSpec(shape)], target_now()))
        *apart, _ = duplicate_matmul_operands(partition(joint, None).backward, joint)
        return [t.op.type for stage in apart for t in stage.program.outputs]


@pytest.mark.parametrize(
    ("activation", "kinds"),
    [
        # The first layer's operand is the input, and the last layer's result is no operand.
        (tf.nn.gelu, ["Mul"] * (LAYERS - 1)),
        (lambda x: x * tf.math.erf(x), ["Mul"] * (LAYERS - 1)),
        (lambda x: tf.nn.gelu(x, approximate=True), ["Mul"] * (LAYERS - 1)),
        # Its gradient is written by hand and makes the sigmoid once more.
        (tf.nn.silu, ["IdentityN"] * (LAYERS - 1)),
    ],
    ids=["gelu", "erf", "gelu by tanh", "silu"],
)
def test_a_function_that_the_slope_reads_too_is_made_twice(activation, kinds):
    assert of_products(layers(activation)) == kinds


@pytest.mark.parametrize(
    "activation",
    [tf.tanh, tf.sigmoid, tf.nn.relu, lambda x: x * x],
    ids=["tanh", "sigmoid", "relu", "square"],
)
def test_what_costs_nothing_or_is_read_itself_is_made_once(activation):
    assert of_products(layers(activation)) == []


@pytest.mark.parametrize(
    ("activation", "kind"), [(tf.nn.gelu, "Mul"), (tf.nn.silu, "IdentityN")], ids=["gelu", "silu"]
)
def test_operands_of_convolutions_are_made_apart_too(activation, kind):
    """Whose gradient asks the shape of the operand, which is no use of its elements."""
    kernels = [tf.Variable(numbers(3, 3, 4, 4, seed=i)) for i in range(LAYERS)]

    def run(x):
        for kernel in kernels:
            x = activation(tf.nn.conv2d(x, kernel, 1, "SAME"))
        return x

    assert of_products(run, shape=(8, 6, 6, 4)) == [kind] * (LAYERS - 1)


@pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
@pytest.mark.parametrize("activation", [tf.nn.gelu, tf.nn.silu], ids=["gelu", "silu"])
def test_gradients_are_those_of_the_plain_function(activation, jit):
    x = numbers(6, WIDTH)
    ours = differentiate(kr.checkpoint(layers(activation)), [x], W, jit=jit)
    assert_same(ours, differentiate(layers(activation), [x], W), relative=5e-6)


@pytest.mark.parametrize("activation", [tf.nn.gelu, tf.nn.silu], ids=["gelu", "silu"])
def test_a_slope_takes_one_array_beside_its_input_and_gradient(activation):
    step = gradient_step(kr.checkpoint(layers(activation)), weights=W)
    program = profile(step, tf.TensorSpec((ROWS, WIDTH)))
    # LAYERS products, the gradient that comes in, the operand of a product, and the gradient that
    # goes out
    assert program.not_always_live_peak_bytes < (LAYERS + 3.1) * STATE, np.round(
        program.not_always_live_peak_bytes / STATE, 1
    )
