"""Keras layers and models for sequences of calls and changes, each made by a function so that it
can be made twice alike.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .op_table import WORDS, numbers

TIME, FEATURES = 3, 4


class Custom(keras.layers.Layer):
    """A layer with what users hang on layers: a number, a tensor, and a weight that comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 1.0
        self.tensor = tf.constant(0.5)
        self.scale = self.add_weight(shape=(FEATURES,), initializer="ones", name="scale")
        self.late: Any = None

    def build(self, _shape: Any) -> None:
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        y = tf.exp(tf.sin(x * self.scale * self.number)) + self.tensor * tf.tanh(x)
        return y if self.late is None else y * tf.sin(self.late)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def grow(self) -> None:
        """Add a weight after the layer has been called."""
        self._tracker.unlock()
        self.late = self.add_weight(shape=(FEATURES,), initializer="ones", name="late")
        self._tracker.lock()


class Attention(keras.layers.Layer):
    """Self-attention, as a layer of one argument."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(2, 2, dropout=0.3, seed=1)

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)
        self.built = True

    def call(self, x: tf.Tensor, training: Any = None) -> tf.Tensor:
        return self.attention(x, x, training=training)


LAYERS: dict[str, Any] = {
    "dense": lambda: keras.layers.Dense(FEATURES, activation="tanh"),
    "custom": Custom,
    "batch norm": lambda: keras.layers.BatchNormalization(momentum=0.9, epsilon=0.1),
    "layer norm": lambda: keras.layers.LayerNormalization(epsilon=0.1),
    "dropout": lambda: keras.layers.Dropout(0.5, seed=1),
    "embedding": lambda: keras.layers.Embedding(WORDS, FEATURES),
    "attention": Attention,
}


def layer_of(kind: str) -> keras.layers.Layer:
    """Return a built layer whose weights are none of them zero, each time the same."""
    keras.utils.set_random_seed(1)
    layer = LAYERS[kind]()
    layer.build((None, TIME) if kind == "embedding" else (None, TIME, FEATURES))
    for weight in layer.trainable_variables:
        weight.assign(weight + 0.1 * np.cos(np.arange(np.prod(weight.shape))).reshape(weight.shape))
    return layer


def input_of(kind: str, batch: int) -> tf.Tensor:
    """Return a batch for a layer of ``kind``."""
    if kind == "embedding":
        return tf.constant(np.arange(batch * TIME).reshape(batch, TIME) % WORDS)
    return tf.constant(numbers(batch, TIME, FEATURES, seed=batch).astype("float32"))


def model_of(kinds: tuple[str, ...]) -> keras.Model:
    """Return a functional model of layers of ``kinds``, with a dense layer at its end."""
    inputs = x = keras.Input((TIME, FEATURES))
    for kind in kinds:
        x = layer_of(kind)(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x))
