"""The models as Keras layers."""

from __future__ import annotations

from typing import Any

import keras
from workloads import Workload, named_weights, weights


def recurrent_layer(workload: Workload, lstm: Any, gru: Any) -> keras.layers.Layer:
    """Return the recurrent layer, made by ``lstm`` or ``gru``, which returns its outputs and its
    state.
    """
    # One bias of zeros, as in the other peers.
    options = {"unit_forget_bias": False} if workload.kind == "lstm" else {}
    layer = {"lstm": lstm, "gru": gru}[workload.kind]
    return layer(workload.units, return_sequences=True, return_state=True, **options)


def dense(workload: Workload) -> keras.layers.Layer:
    """Return the layer on every output of the recurrent one."""
    del workload
    return keras.layers.Dense(1)


def network(workload: Workload) -> keras.Model:
    """Return the network of ``keras.applications`` that the workload names, with logits."""
    return getattr(keras.applications, workload.kind)(
        weights=None,
        input_tensor=keras.Input(workload.shape[1:], batch_size=workload.batch),
        classes=workload.classes,
        classifier_activation=None,
    )


def sections(workload: Workload, checkpoints: int) -> list[list[keras.Model]]:
    """Return the models, one after the other, that each section of a stack or a network consists
    of.
    """
    if workload.network is None:
        blocks = [_block(workload, i) for i in range(workload.blocks)]
        return [blocks[begin:end] for begin, end in workload.sections(checkpoints)]
    whole, found = network(workload), []
    begin = whole.input
    for _, end in workload.sections(checkpoints)[:-1]:
        result = whole.get_layer(workload.network.blocks[end - 1].result).output
        found.append([keras.Model(begin, result)])
        begin = result
    return [*found, [keras.Model(begin, whole.output)]]


def assign(workload: Workload, variables: list[keras.Variable]) -> None:
    """Give the trainable variables of a model the values that all peers start with."""
    if workload.network:
        named = named_weights(workload)
        values = [named.pop(variable.path) for variable in variables]
        assert not named, f"no variables have these: {list(named)}"
    else:
        values = weights(workload)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


class Positions(keras.layers.Layer):
    """Add a learned vector to each token."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Create the vectors."""
        self.vectors = self.add_weight(shape=shape[1:], name="vectors")

    def call(self, x: Any) -> Any:
        """Return ``x``, ``(batch, tokens, features)``, with the vectors added."""
        return x + self.vectors


def block_layers(
    workload: Workload, x: Any, number: int, attention: Any = keras.layers.MultiHeadAttention
) -> Any:
    """Apply a new block to ``x``, the one of that number, with the layer ``attention`` where it has
    one.

    Of a vision transformer the first block has the patches before it, and the last one the dense
    layer behind it.
    """
    width = workload.features
    if workload.kind == "dense":
        return keras.layers.Dense(width, activation="relu")(x)
    if workload.kind == "residual":
        y = keras.layers.BatchNormalization()(
            keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        )
        y = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(keras.layers.ReLU()(y))
        return keras.layers.ReLU()(keras.layers.Add()([x, keras.layers.BatchNormalization()(y)]))
    if workload.patch and number == 0:
        x = keras.layers.Conv2D(width, workload.patch, workload.patch, use_bias=False)(x)
        x = Positions()(keras.layers.Reshape(workload.block_shape[1:])(x))
    y = keras.layers.LayerNormalization()(x)
    y = attention(workload.heads, width // workload.heads)(
        y, y, use_causal_mask=workload.kind == "decoder"
    )
    x = keras.layers.Add()([x, y])
    y = keras.layers.LayerNormalization()(x)
    y = keras.layers.Dense(workload.units, activation="gelu")(y)
    x = keras.layers.Add()([x, keras.layers.Dense(width)(y)])
    if workload.patch and number == workload.blocks - 1:
        x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
        x = keras.layers.Dense(workload.classes)(x)
    return x


def _block(workload: Workload, number: int) -> keras.Model:
    shape = workload.block_shape if number else workload.shape
    inputs = keras.Input(shape[1:], batch_size=workload.batch)
    return keras.Model(inputs, block_layers(workload, inputs, number), name=f"block_{number}")
