"""Keras's own layer with the same weights, and everything in which ours must agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.layers.recurrent import GRU, LSTM

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


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


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
) -> list:
    """Return all outputs of ``layer`` and the gradients of input, states and weights of a sum that
    weighs them.
    """
    inputs = tf.convert_to_tensor(inputs)

    @tf.function(jit_compile=jit, autograph=False)
    def run(inputs, states):
        sources = [inputs, *(states or [])]
        variables = [w.value for w in layer.trainable_weights]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = tf.nest.flatten(layer(inputs, initial_state=states, **call))
            loss = tf.add_n([tf.reduce_sum(y * weights_like(y, n)) for n, y in enumerate(outputs)])
        return outputs, tape.gradient(loss, [*sources, *variables])

    outputs, gradients = run(inputs, states)
    assert all(g is not None for g in gradients)
    return [tf.cast(t, tf.float64).numpy() for t in (*outputs, *gradients)]


def weights_like(y: tf.Tensor, n: int) -> tf.Tensor:
    return tf.constant(
        np.cos(np.arange(np.prod(y.shape)) * (n + 1.0)).reshape(y.shape.as_list()), y.dtype
    )


def assert_close(ours: list, plain: list, tolerance: float) -> None:
    """Assert that every result is within ``tolerance`` of the largest element of Keras's, and none
    is trivial.
    """
    assert len(ours) == len(plain)
    for number, (a, b) in enumerate(zip(ours, plain, strict=True)):
        assert a.shape == b.shape, f"result {number}: {a.shape} against {b.shape}"
        scale = np.abs(b).max()
        assert scale > 0, f"result {number} is all zero: nothing is compared"
        off = np.abs(a - b).max() / scale
        assert off <= tolerance, f"result {number} is off by {off:.2g} of its largest element"
