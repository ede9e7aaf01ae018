"""Checkpoints around one layer that has nearly all others inside say that they save nothing."""

import warnings

import keras
import numpy as np

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from keras_recompute.liveness import profile

IS_JAX = keras.backend.backend() == "jax"


class Block(keras.layers.Layer):
    """Two dense layers beside which a sum goes past, as in a transformer."""

    def __init__(self, width, **options):
        super().__init__(**options)
        self.up, self.down = keras.layers.Dense(4 * width, "gelu"), keras.layers.Dense(width)

    def build(self, shape):
        self.up.build(shape)
        self.down.build((*shape[:-1], self.up.units))
        self.built = True

    def call(self, x):
        return x + self.down(self.up(x))


class Encoder(keras.layers.Layer):
    """Blocks inside one layer."""

    def __init__(self, count, width):
        super().__init__(name="encoder")
        self.blocks = [Block(width, name=f"block_{number}") for number in range(count)]

    def build(self, shape):
        for block in self.blocks:
            block.build(shape)
        self.built = True

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def with_encoder(blocks, *, apart=0, width=32):
    """A model of an encoder, between a layer and a head, and of blocks that stand alone."""
    inputs = keras.Input((width,))
    x = Encoder(blocks, width)(keras.layers.Dense(width)(inputs))
    for number in range(apart):
        x = Block(width, name=f"apart_{number}")(x)
    return keras.Model(inputs, keras.layers.Dense(4)(x))


def said_of_encoder(rows=1024, *, every=1, **parts):
    """Peaks of the plain step and of one with checkpoints, and what is said of them.

    On PyTorch an update of Nadam waits for all gradients, as in plain Keras.
    """
    plain = with_encoder(**parts)
    ours = kr.checkpointed(plain, every=every)
    batch = np.ones((rows, 32), "float32"), np.ones((rows, 4), "float32")
    for model in (plain, ours):
        model.compile("Nadam", "mse", jit_compile=IS_JAX)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecomputeWarning)
        for _ in range(2):
            ours.train_on_batch(*batch)
    said = [str(w.message) for w in caught if issubclass(w.category, RecomputeWarning)]
    return [profile(model, *batch).peak_bytes for model in (plain, ours)], said


def test_checkpoints_around_one_layer_of_blocks_save_nothing_and_say_so_once():
    # 8 blocks of 4 weights of 36: each of the other two layers has 2.
    (plain, ours), (message,) = said_of_encoder(blocks=8)
    assert ours > 0.9 * plain
    assert "save next to nothing: nearly all its weights are inside 'encoder', a Encoder" in message
    assert "checkpointed(model, layers=...)" in message


def test_blocks_that_stand_alone_are_not_spoken_of():
    # 4 blocks of 4 weights inside, of 36.
    (plain, ours), said = said_of_encoder(blocks=4, apart=4)
    assert not said
    assert ours < 0.9 * plain
