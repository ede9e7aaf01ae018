"""What reads the gradient of one block's weights is compiled once for all blocks of a loop."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.passes import leaving_out

BLOCKS = 6
RATE = 0.1
X = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")


def network(*, every: int | None = 1) -> tuple[keras.Model, kr.Model]:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8,), batch_size=4)
    for number in range(BLOCKS):
        x = keras.layers.Dense(8, "tanh", name=f"block_{number}", bias_initializer="normal")(x)
    plain = keras.Model(inputs, x)
    ours = kr.Model(inputs, x) if every is None else kr.checkpointed(plain, every=every)
    ours.scan_layers = True
    return plain, ours


def step_of(model: keras.Model):
    weights = [v.value for v in model.trainable_variables]

    @tf.function(jit_compile=True, autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        gradients = tape.gradient(loss, weights)
        for variable, gradient in zip(weights, gradients):
            variable.assign_sub(RATE * gradient)
        return loss, *gradients

    return step


def kernels_of_updates(model: keras.Model) -> set[str]:
    """Return the different fused computations that subtract from a weight, without names and where
    they come from.
    """
    program = step_of(model).experimental_get_compiler_ir(X)(stage="optimized_hlo")
    computations = [c for c in program.split("\n\n") if "fused_computation" in c.split("(")[0]]
    return {
        _without_names(c)
        for c in computations
        if re.search(r"ROOT .* subtract\(", c) and "AssignSub" in c
    }


def _without_names(computation: str) -> str:
    order: dict[str, str] = {}
    bare = re.sub(r", metadata=\{[^}]*\}", "", computation)
    names = r"%[\w.-]+|\b[a-zA-Z_][\w.]*(?=: )"
    return re.sub(
        names, lambda found: order.setdefault(found[0].lstrip("%"), f"v{len(order)}"), bare
    )


@pytest.mark.long
def test_all_blocks_of_a_loop_share_the_kernels_of_their_updates():
    # One for kernels and one for biases of the five blocks in the loop, and two for the block
    # behind the last checkpoint.
    _, model = network()
    assert len(kernels_of_updates(model)) == 2 + 2
    with leaving_out("shared_kernels"):
        assert len(kernels_of_updates(model)) == 2 * (BLOCKS - 1) + 2


@pytest.mark.parametrize(
    ("every", "levels"),
    [
        (1, 1),
        *(pytest.param(*each, marks=pytest.mark.long) for each in [(1, 2), (2, 1)]),
        (None, 1),
    ],
)
def test_every_block_gets_its_own_gradient(every, levels):
    plain, ours = network(every=every)
    ours.recomputation_levels = levels
    before = plain.get_weights()
    loss, *gradients = step_of(ours)(X)
    after = plain.get_weights()
    plain.set_weights(before)
    expected_loss, *expected = step_of(plain)(X)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    for variable, old, new, ours_, theirs in zip(
        plain.variables, before, after, gradients, expected, strict=True
    ):
        np.testing.assert_allclose(ours_, theirs, rtol=1e-5, atol=1e-8, err_msg=variable.path)
        np.testing.assert_allclose(
            new, old - RATE * theirs.numpy(), rtol=1e-5, atol=1e-7, err_msg=variable.path
        )
