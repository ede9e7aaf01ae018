"""Keras models whose training steps several tests look at, and their compiled programs, each
compiled once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable

import keras
import pytest
import tensorflow as tf

import keras_recompute as kr
import keras_recompute.engine  # before anything is compiled: it sets a flag of XLA
from keras_recompute.liveness import CompiledProgram, compile_program

STEPS, BATCH, FEATURES, UNITS = 128, 4, 16, 16
CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def lstm(checkpoints: int, layer: Any = None) -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
    """Return an LSTM over ``checkpoints + 1`` equal sections with a dense layer on every output."""
    inputs = keras.Input((STEPS, FEATURES), batch_size=BATCH)
    recurrent = (layer or kr.LSTM)(UNITS, return_sequences=True, return_state=True, name="lstm")
    length, state, outputs = STEPS // (checkpoints + 1), None, []
    for begin in range(0, STEPS, length):
        x = kr.TimeSlice(begin, begin + length)(inputs) if checkpoints else inputs
        y, *state = recurrent(x, initial_state=state)
        if begin + length < STEPS:
            state = kr.RecomputationCheckpoint()(state)
        outputs.append(y)
    x = keras.layers.Concatenate(axis=1)(outputs) if checkpoints else outputs[0]
    model = (keras.Model if layer else kr.Model)(inputs, keras.layers.Dense(1, name="head")(x))
    model.compile("sgd", "mse", jit_compile=True)
    return model, tf.TensorSpec((BATCH, STEPS, FEATURES)), tf.TensorSpec((BATCH, STEPS, 1))


def convolutional() -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
    """Return three blocks of convolution, batch norm, activation and pooling, named by Keras
    itself.
    """
    inputs = x = keras.Input((16, 16, 3), batch_size=8)
    for channels in (8, 16, 32):
        x = keras.layers.Conv2D(channels, 3, padding="same")(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
        x = keras.layers.MaxPooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile("adam", CLASSES, jit_compile=True)
    return model, tf.TensorSpec((8, 16, 16, 3)), tf.TensorSpec((8,), tf.int32)


def checkpointed(
    network: Callable[[], tuple[Any, tf.TensorSpec, tf.TensorSpec]],
) -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
    """Return ``network`` with a checkpoint after every three layers: sections that are not alike,
    each a branch of its own.
    """
    plain, *batch = network()
    model = kr.checkpointed(plain, every=3)
    model.compile("adam", CLASSES, jit_compile=True)
    return model, *batch


def transformer() -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
    """Return two blocks of attention and feed-forward layers with dropout, a checkpoint between
    them.
    """
    inputs = keras.Input((32,), batch_size=4, dtype="int32")
    x = keras.layers.Embedding(128, 16)(inputs)
    for block in range(2):
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(2, 8)(y, y)
        y = keras.layers.Dense(64, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dense(16)(keras.layers.Dropout(0.1)(y))
        x = x if block else kr.RecomputationCheckpoint()(x)
    model = kr.Model(inputs, keras.layers.Dense(128)(x))
    model.compile("adam", CLASSES, jit_compile=True)
    return model, tf.TensorSpec((4, 32), tf.int32), tf.TensorSpec((4, 32), tf.int32)


NETWORKS: dict[str, Callable[[], tuple[Any, tf.TensorSpec, tf.TensorSpec]]] = {
    "LSTM, 0 checkpoints": lambda: lstm(0),
    "LSTM, 7 checkpoints": lambda: lstm(7),
    "LSTM, 31 checkpoints": lambda: lstm(31),
    "keras.layers.LSTM": lambda: lstm(0, keras.layers.LSTM),
    "convolutional": convolutional,
    "convolutional, checkpointed": lambda: checkpointed(convolutional),
    "transformer": transformer,
    "transformer, checkpointed": lambda: checkpointed(transformer),
}


EACH = [
    pytest.param(name, marks=() if name == "LSTM, 7 checkpoints" else pytest.mark.long)
    for name in NETWORKS
]


@lru_cache(maxsize=None)
def compiled(name: str) -> CompiledProgram:
    """Return the compiled training step of a network."""
    keras.utils.clear_session()  # layers are numbered from the first again
    model, *batch = NETWORKS[name]()
    return compile_program(model, *batch)
