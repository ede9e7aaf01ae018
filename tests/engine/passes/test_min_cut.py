"""What follows by arithmetic from what is kept is made again where it is read: not saved, and not
held by a replay.
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
from keras_recompute.engine.policies import save_everything
from keras_recompute.liveness import profile
from tests.oracle import gradient_step, numbers

WIDTH, BATCH = 16, 4096
STATE = 4 * WIDTH * BATCH  # bytes of one activation: 256 KiB
W = [tf.Variable(numbers(WIDTH, WIDTH, seed=i) * 0.3) for i in range(8)]
SCALES = [tf.Variable(numbers(WIDTH, seed=20 + i)) for i in range(8)]


def scaled_layer(x, i):
    """Its gradient reads the product (for the scale), the scaled product (for relu) and relu of it
    (for the next product).
    """
    return tf.nn.relu(tf.matmul(x, W[i]) * SCALES[i] + 1.0)


def scaled(x):
    for i in range(len(W)):
        x = scaled_layer(x, i)
    return x


def residual(x):
    for i in range(0, len(W), 2):
        x += tf.matmul(scaled_layer(x, i), W[i + 1])
    return x


def saved(function, policy):
    part = partition(join(trace(function, [tf.TensorSpec((BATCH, WIDTH))], target_now())), policy)
    return [value.op.type for value in part.saved if value.shape.rank == 2]


def test_of_a_product_its_scaling_and_its_relu_only_the_product_is_saved():
    def two(x):
        return scaled_layer(scaled_layer(x, 0), 1)

    # The gradient reads each product, each relu (its own, and the first one's for the second
    # product).
    assert sorted(saved(two, save_everything)) == ["MatMul", "MatMul", "Relu", "Relu"]
    assert saved(two, None) == ["MatMul", "MatMul"]


def test_what_follows_from_two_values_is_not_saved_beside_them():
    def gated(x):
        return tf.tanh(tf.matmul(x, W[0])) * tf.sigmoid(tf.matmul(x, W[1])) @ W[2]

    assert sorted(saved(gated, save_everything)) == ["Mul", "Sigmoid", "Tanh"]
    assert sorted(saved(gated, None)) == ["Sigmoid", "Tanh"]


def test_a_long_sum_is_not_added_up_anew_for_each_term():
    def terms(x):
        x = tf.tanh(x)
        for w in W[:4]:
            x += tf.tanh(x @ w)
        return tf.sin(x)

    # a tanh per term, and every second of the four sums, which would need three of those and more;
    # tanh(x) follows from x
    assert sorted(saved(terms, save_everything)) == ["AddV2"] * 4 + ["Tanh"] * 5
    assert sorted(saved(terms, None)) == ["AddV2"] * 2 + ["Tanh"] * 4


def test_of_a_gelu_the_one_value_is_saved_that_all_others_follow_from():
    def two(x):
        return tf.nn.gelu(tf.nn.gelu(x @ W[0] + SCALES[0]) @ W[1] + SCALES[1])

    # x / 2, -x / sqrt 2, erfc of that, and of the first gelu the result, for the product behind it
    assert sorted(saved(two, save_everything)) == ["Erfc"] * 2 + ["Mul"] * 5
    assert saved(two, None) == ["MatMul", "MatMul"]


def test_nothing_is_computed_twice_where_that_saves_nothing():
    # tanh of the product would follow from the product, which is as large.
    assert saved(lambda x: tf.tanh(x @ W[0]) @ W[1], None) == ["Tanh"]


def test_what_follows_from_an_input_is_not_saved():
    assert saved(lambda x: tf.matmul(tf.nn.relu(x + 1.0), W[0]), None) == []


def step(function):
    return gradient_step(lambda x: tf.tanh(function(x)), weights=[*W, *SCALES], unconnected="zero")


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "most"),
    [
        # eight products, the gradient that comes in, and what one layer's gradient works with:
        # three. The scaled product and relu of it would be sixteen more.
        (scaled, 8 + 1 + 3),
        # Four states, four products, the same. All terms of the gradient of the state would be four
        # more.
        (residual, 4 + 4 + 1 + 3),
    ],
    ids=["scaled", "residual"],
)
def test_a_replay_holds_one_array_per_product(function, most):
    program = profile(step(kr.checkpoint(function)), tf.TensorSpec((BATCH, WIDTH)))
    assert program.not_always_live_peak_bytes / STATE <= most + 0.1


@pytest.mark.parametrize("function", [scaled, residual])
@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.long)], ids=["no-jit", "jit"]
)
def test_gradients_are_those_of_the_plain_function(function, jit):
    x = tf.constant(numbers(32, WIDTH, seed=99) * 0.1)
    expected = tf.function(step(function), autograph=False)(x)
    found = tf.function(step(kr.checkpoint(function)), jit_compile=jit, autograph=False)(x)
    for number, (ours, plain) in enumerate(zip(found, expected)):
        np.testing.assert_allclose(
            ours, plain, rtol=0, atol=1e-5 * np.abs(plain).max(), err_msg=f"gradient {number}"
        )
