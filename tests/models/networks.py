"""Functional models with checkpoints. Each is built with any Model class, so that keras.Model gives
the plain twin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_recompute.layers.recomputation_checkpoint import RecomputationCheckpoint
from keras_recompute.layers.recurrent import GRU, LSTM
from keras_recompute.layers.time_slice import TimeSlice
from tests.oracle import numbers

LENGTH, FEATURES, UNITS = 8, 3, 4


def mark(value: Any) -> Any:
    return RecomputationCheckpoint()(value)


def recurrent(
    Model,
    checkpoints: int = 3,
    *,
    cell=LSTM,
    length: int = LENGTH,
    lengths: list[int] | None = None,
    first_state: bool = False,
    last_only: bool = False,
    order: Callable[[list], list] = list,
    head: Callable[[Any], Any] | None = None,
    **arguments,
):
    """The published example's network: equal sections of one recurrent layer, the state marked
    between them.
    """
    inputs = keras.Input((length, FEATURES))
    layer = cell(UNITS, return_sequences=True, return_state=True, **arguments)
    lengths = lengths or [length // (checkpoints + 1)] * (checkpoints + 1)
    outputs, state, begin = [], None, 0
    if first_state:
        count = len(layer.state_size) if isinstance(layer.state_size, (list, tuple)) else 1
        state = [keras.layers.Dense(UNITS)(inputs[:, 0]) for _ in range(count)]
    for number, steps in enumerate(lengths):
        output, *state = layer(TimeSlice(begin, begin + steps)(inputs), initial_state=state)
        outputs.append(output)
        begin += steps
        if number + 1 < len(lengths):
            state = mark(state)
    whole = (
        keras.layers.Concatenate(axis=1)(order(outputs))
        if len(outputs) > 1 and not last_only
        else outputs[-1]
    )
    return Model(inputs, (head or keras.layers.Dense(2))(whole))


def dense_chain(Model, depth: int = 4, **arguments):
    inputs = x = keras.Input((FEATURES,))
    for n in range(depth):
        x = mark(keras.layers.Dense(UNITS + n, activation="tanh", **arguments)(x))
    return Model(inputs, keras.layers.Dense(1)(x))


def shared_dense(Model, depth: int = 5, **arguments):
    inputs = keras.Input((FEATURES,))
    x = keras.layers.Dense(UNITS)(inputs)
    layer = keras.layers.Dense(UNITS, activation="tanh", **arguments)
    for _ in range(depth):
        x = mark(layer(x))
    return Model(inputs, keras.layers.Dense(1)(x))


def skips(Model):
    """Values that pass over a checkpoint, one of them over two."""
    inputs = keras.Input((UNITS,))
    a = keras.layers.Dense(UNITS, activation="tanh")(inputs)
    b = mark(keras.layers.Dense(UNITS, activation="tanh")(a))
    c = mark(keras.layers.Add()([keras.layers.Dense(UNITS, activation="relu")(b), a]))
    d = mark(keras.layers.Multiply()([keras.layers.Dense(UNITS)(c), inputs]))
    return Model(inputs, keras.layers.Concatenate()([d, a, b]))


def several(Model):
    """Two inputs, three outputs: one from the middle, one that is marked, one at the end."""
    left, right = keras.Input((FEATURES,), name="left"), keras.Input((FEATURES,), name="right")
    x = keras.layers.Add()(
        [keras.layers.Dense(UNITS)(left), keras.layers.Dense(UNITS, activation="tanh")(right)]
    )
    middle = keras.layers.Dense(2, name="middle")(x)
    marked = mark(keras.layers.Dense(UNITS, activation="tanh")(x))
    end = keras.layers.Dense(1, name="end")(keras.layers.Dense(UNITS, activation="relu")(marked))
    return Model([left, right], {"middle": middle, "marked": marked, "end": end})


def nested(Model):
    """A section holds a whole model, another holds the same one again."""
    inner_input = keras.Input((UNITS,))
    hidden = keras.layers.Dense(UNITS, activation="tanh")(inner_input)
    inner = keras.Model(inner_input, keras.layers.Dense(UNITS)(hidden))
    inputs = keras.Input((UNITS,))
    x = mark(inner(inputs))
    x = mark(inner(keras.layers.Activation("tanh")(x)))
    return Model(inputs, keras.layers.Dense(1)(x))


def nested_checkpoints(Model):
    """The model inside has checkpoints of its own."""
    inner = dense_chain(Model, 2)
    inputs = keras.Input((FEATURES,))
    x = mark(keras.layers.Dense(FEATURES)(inputs))
    return Model(inputs, mark(inner(x)) * 2.0)


def masked(Model):
    """The mask of an embedding goes through checkpoints to Keras's own recurrent layer and to the
    loss.
    """
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = mark(keras.layers.Embedding(7, FEATURES, mask_zero=True)(inputs))
    x = mark(keras.layers.LSTM(UNITS, return_sequences=True)(x))
    x = mark(keras.layers.LSTM(UNITS, return_sequences=True)(x))
    return Model(inputs, keras.layers.Dense(1)(x))


def with_dropout(Model):
    inputs = x = keras.Input((32,))
    for n in range(3):
        x = keras.layers.Dense(32)(x)
        x = mark(keras.layers.Dropout(0.5, seed=n)(x))
    return Model(inputs, x)


def with_batch_norm(Model):
    inputs = x = keras.Input((FEATURES,))
    for _ in range(3):
        # The norm takes a bias away again: its gradient is rounding.
        x = keras.layers.Dense(UNITS, use_bias=False)(x)
        x = mark(keras.layers.Activation("tanh")(keras.layers.BatchNormalization(momentum=0.9)(x)))
    return Model(inputs, keras.layers.Dense(1)(x))


def convolutional(Model):
    inputs = x = keras.Input((6, 6, 2))
    for filters in (3, 4):
        x = mark(keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x))
    return Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(x)))


def normalised_head(x):
    """Layers that act on single timesteps: they move in front of the concatenation."""
    return keras.layers.Dense(2)(
        keras.layers.Activation("tanh")(keras.layers.LayerNormalization()(x))
    )


def reverse(outputs: list) -> list:
    return outputs[::-1]


def first_again(outputs: list) -> list:
    return [*outputs, outputs[0]]


def over_time(x):
    return keras.layers.Conv1D(2, 2)(x)


@dataclass(frozen=True)
class Network:
    build: Callable[[Any], Any]
    arrays: tuple[np.ndarray, ...] = field(default_factory=lambda: (numbers(6, FEATURES),))


SEQUENCES = (numbers(4, LENGTH, FEATURES),)
SQUARE = (numbers(6, UNITS),)
NETWORKS = {
    "recurrent": Network(recurrent, SEQUENCES),
    "gru": Network(lambda Model: recurrent(Model, cell=GRU), SEQUENCES),
    "uneven": Network(lambda Model: recurrent(Model, lengths=[2, 2, 1, 1, 2]), SEQUENCES),
    "given first state": Network(lambda Model: recurrent(Model, first_state=True), SEQUENCES),
    "last output only": Network(lambda Model: recurrent(Model, last_only=True), SEQUENCES),
    "outputs in another order": Network(lambda Model: recurrent(Model, order=reverse), SEQUENCES),
    "an output twice": Network(
        lambda Model: recurrent(Model, order=first_again, head=over_time), SEQUENCES
    ),
    "per-timestep head": Network(lambda Model: recurrent(Model, head=normalised_head), SEQUENCES),
    "keras lstm": Network(lambda Model: recurrent(Model, cell=keras.layers.LSTM), SEQUENCES),
    "recurrent dropout of inputs": Network(
        lambda Model: recurrent(Model, dropout=0.3, seed=5), SEQUENCES
    ),
    "dense chain": Network(dense_chain),
    "shared dense": Network(shared_dense),
    "skips": Network(skips, SQUARE),
    "several": Network(several, (numbers(6, FEATURES), numbers(6, FEATURES, seed=1))),
    "nested": Network(nested, SQUARE),
    "nested checkpoints": Network(nested_checkpoints),
    "masked": Network(
        masked,
        (np.array([[1, 2, 3, 4, 5, 6, 1, 2], [3, 2, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]]),),
    ),
    "dropout": Network(with_dropout, (numbers(6, 32),)),
    "batch norm": Network(with_batch_norm),
    "convolutional": Network(convolutional, (numbers(2, 6, 6, 2),)),
}
