"""Passes for a compiler change what a program takes, never what it computes; each can be left out."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.target import ON_CPU, PASSES, TENSORFLOW, leaving_out, target_now
from keras_recompute.errors import InvalidArgumentError

LAYERS = keras.layers
IMAGES = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("float32")


def network() -> keras.Model:
    """Something of every pass: convolutions, pooling, normalisation, attention, equal blocks, a recurrence, residual sums."""
    x = inputs = keras.Input((8, 8, 3))
    x = LAYERS.MaxPooling2D(name="pool")(LAYERS.Conv2D(8, 3, padding="same", activation="gelu")(x))
    for number in range(3):
        y = LAYERS.BatchNormalization()(LAYERS.Conv2D(8, 3, padding="same")(x))
        x = LAYERS.Add(name=f"block_{number}")([x, LAYERS.ReLU()(y)])
    x = LAYERS.Reshape((16, 8))(x)
    x = LAYERS.Add(name="attended")([x, kr.MultiHeadAttention(2, 4)(x, x)])
    x = kr.LSTM(8, return_sequences=True, name="lstm")(x)
    return keras.Model(inputs, LAYERS.Dense(1)(x))


@pytest.fixture(scope="module")
def models():
    keras.utils.set_random_seed(0)
    plain = network()
    return plain, kr.checkpointed(plain, at=["pool", "block_0", "block_1", "block_2", "attended", "lstm"])


def gradients(model: keras.Model, *, jit: bool) -> list[np.ndarray]:
    weights = [v.value for v in model.trainable_variables]

    @tf.function(jit_compile=jit, autograph=False)
    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images, training=True)))
        return [loss, *tape.gradient(loss, weights)]

    state = [v.numpy() for v in model.variables]
    found = [t.numpy() for t in step(IMAGES)]
    for variable, value in zip(model.variables, state):
        variable.assign(value)
    return found


@pytest.mark.parametrize(
    "left_out",
    [*(pytest.param([name], marks=pytest.mark.long) for name in PASSES), list(PASSES)],
    ids=lambda names: "+".join(names)[:20],
)
def test_without_a_pass_and_without_any_the_numbers_are_the_plain_model_s(models, left_out):
    plain, ours = models
    with leaving_out(*left_out):
        found = gradients(ours, jit=True)
    for one, other in zip(found, gradients(plain, jit=False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_a_target_is_looked_up_in_the_graph_under_construction():
    seen = []

    def look():
        seen.append(target_now())
        return tf.constant(0)

    tf.function(look)()
    tf.function(look, jit_compile=True)()
    with leaving_out("order", "poolings"):
        tf.function(look, jit_compile=True)()
    outside, whole, less = seen
    assert outside is TENSORFLOW
    assert not outside.is_xla
    assert whole.is_xla
    on_cpu = not tf.config.list_logical_devices("GPU")
    assert whole.passes == set(PASSES) - (set() if on_cpu else set(ON_CPU))
    assert less.passes == whole.passes - {"order", "poolings"}


def test_a_pass_that_there_is_not():
    with pytest.raises(InvalidArgumentError, match="there is no pass 'speed'; there are order, "), leaving_out("speed"):
        pass
