"""The models as Keras layers."""

from __future__ import annotations

from typing import Any

import keras
from workloads import Workload


def recurrent_layer(workload: Workload, lstm: Any, gru: Any) -> keras.layers.Layer:
    """Return the recurrent layer, made by ``lstm`` or ``gru``, which returns its outputs and its state."""
    # One bias of zeros, as in the other peers.
    options = {"unit_forget_bias": False} if workload.kind == "lstm" else {}
    layer = {"lstm": lstm, "gru": gru}[workload.kind]
    return layer(workload.units, return_sequences=True, return_state=True, **options)


def dense(workload: Workload) -> keras.layers.Layer:
    """Return the layer on every output of the recurrent one."""
    del workload
    return keras.layers.Dense(1)


def blocks(workload: Workload) -> list[keras.Model]:
    """Return the blocks of a model that is a stack of them, each a functional model."""
    return [_block(workload, i) for i in range(workload.blocks)]


def block_layers(workload: Workload, x: Any, attention: Any = keras.layers.MultiHeadAttention) -> Any:
    """Apply one new block to ``x``, with the layer ``attention`` where it has one."""
    width = workload.features
    if workload.kind == "dense":
        return keras.layers.Dense(width, activation="relu")(x)
    if workload.kind == "residual":
        y = keras.layers.BatchNormalization()(keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(x))
        y = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(keras.layers.ReLU()(y))
        return keras.layers.ReLU()(keras.layers.Add()([x, keras.layers.BatchNormalization()(y)]))
    y = keras.layers.LayerNormalization()(x)
    y = attention(workload.heads, width // workload.heads)(y, y)
    x = keras.layers.Add()([x, y])
    y = keras.layers.LayerNormalization()(x)
    y = keras.layers.Dense(workload.units, activation="gelu")(y)
    return keras.layers.Add()([x, keras.layers.Dense(width)(y)])


def _block(workload: Workload, number: int) -> keras.Model:
    inputs = keras.Input(workload.shape[1:], batch_size=workload.batch)
    return keras.Model(inputs, block_layers(workload, inputs), name=f"block_{number}")
