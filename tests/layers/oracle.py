"""Keras's own layer with the same weights, and everything in which ours must agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.layers.recurrent import GRU, LSTM
from tests.oracle import numbers, outputs_and_gradients

BATCH, TIME, FEATURES, UNITS = 3, 6, 5, 4
PLAIN = {LSTM: keras.layers.LSTM, GRU: keras.layers.GRU}
# name: (layer, arguments)
CELLS = {
    "lstm": (LSTM, {}),
    "gru-after": (GRU, {"reset_after": True}),
    "gru-before": (GRU, {"reset_after": False}),
}
CELL = pytest.mark.parametrize(
    "cell",
    ["lstm", *(pytest.param(gru, marks=pytest.mark.long) for gru in ("gru-after", "gru-before"))],
)


def pair(cell: str, *, features: int = FEATURES, **arguments: Any) -> tuple[Any, Any]:
    """Return our layer and Keras's with the same weights, none of them zero, not even the bias."""
    ours_class, extra = CELLS[cell]
    arguments = {**extra, **arguments}
    ours, plain = ours_class(UNITS, **arguments), PLAIN[ours_class](UNITS, **arguments)
    for layer in (ours, plain):
        layer.build((BATCH, TIME, features))
    weights = [numbers(*w.shape, seed=1 + i) * 0.5 for i, w in enumerate(plain.get_weights())]
    plain.set_weights(weights)
    ours.set_weights(weights)
    return ours, plain


def states_for(layer: Any, dtype: str = "float32") -> list[tf.Tensor]:
    count = 2 if isinstance(layer, keras.layers.LSTM) else 1
    return [tf.constant(numbers(BATCH, UNITS, seed=20 + i, dtype=dtype)) for i in range(count)]


def results(
    layer: Any,
    inputs: np.ndarray,
    states: Sequence[tf.Tensor] | None = None,
    *,
    jit: bool = False,
    **call: Any,
) -> list[np.ndarray]:
    """Return all outputs of ``layer`` and the gradients of input, states and weights of a sum that
    weighs them.
    """

    def run(inputs, *states):
        return layer(inputs, initial_state=list(states) or None, **call)

    weights = [w.value for w in layer.trainable_weights]
    mode = "jit" if jit else "graph"
    found = outputs_and_gradients(run, [inputs, *(states or ())], weights, mode=mode)
    assert all(g is not None for g in found[1])
    return [tf.cast(t, tf.float64).numpy() for t in (*found[0], *found[1])]
