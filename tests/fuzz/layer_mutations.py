"""What a user may do to a layer between two calls.

Each change is made alike to a layer and to its twin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .layer_kinds import Custom


def _toggle_trainable(layer: keras.layers.Layer, _n: int) -> None:
    layer.trainable = not layer.trainable


def _assign(layer: keras.layers.Layer, n: int) -> None:
    for weight in layer.trainable_variables:
        weight.assign(np.cos(np.arange(np.prod(weight.shape)) + n).reshape(weight.shape))


def _set_weights(layer: keras.layers.Layer, n: int) -> None:
    layer.set_weights(
        [w if w.dtype.kind in "iu" else 0.9 * w + 0.01 * n for w in layer.get_weights()]
    )


def _rate(layer: Any, n: int) -> None:
    layer.rate = (0.0, 0.3, 0.9)[n]


def _momentum(layer: Any, n: int) -> None:
    layer.momentum = (0.0, 0.5, 0.99)[n]


def _epsilon(layer: Any, n: int) -> None:
    layer.epsilon = (0.1, 0.3, 0.5)[n]


def _number(layer: Any, n: int) -> None:
    layer.number = (1.0, 0.5, 2)[n]


def _tensor(layer: Any, n: int) -> None:
    layer.tensor = tf.constant((0.5, -0.5, 1.5)[n])


def _activation(layer: Any, n: int) -> None:
    layer.activation = (tf.tanh, tf.sin, tf.sigmoid)[n]


def _grow(layer: Any, _n: int) -> None:
    if layer.late is None:
        layer.grow()


def _lora(layer: Any, n: int) -> None:
    if not layer.lora_enabled and layer.quantization_mode is None:
        layer.enable_lora(1 + n % 2)
        for weight in (layer.lora_kernel_a, layer.lora_kernel_b):  # drawn at random, or zero
            weight.assign(0.3 * np.cos(np.arange(np.prod(weight.shape))).reshape(weight.shape))


def _quantize(layer: Any, _n: int) -> None:
    if layer.quantization_mode is None:
        layer.quantize("int8")


CHANGES: dict[str, tuple[Callable[[Any, int], None], Any]] = {
    # name: (change, the layers that it can be made to)
    "toggle trainable": (_toggle_trainable, keras.layers.Layer),
    "assign": (_assign, keras.layers.Layer),
    "set_weights": (_set_weights, keras.layers.Layer),
    "rate": (_rate, keras.layers.Dropout),
    "momentum": (_momentum, keras.layers.BatchNormalization),
    "epsilon": (_epsilon, (keras.layers.BatchNormalization, keras.layers.LayerNormalization)),
    "number": (_number, Custom),
    "tensor": (_tensor, Custom),
    "grow": (_grow, Custom),
    "activation": (_activation, keras.layers.Dense),
    "enable_lora": (_lora, keras.layers.Dense),
    "quantize": (_quantize, keras.layers.Dense),
}


def changes_of(layer: keras.layers.Layer) -> list[str]:
    """Return the names of the changes that can be made to ``layer``."""
    return [name for name, (_, kind) in CHANGES.items() if isinstance(layer, kind)]


def change(name: str, layers: list[Any], n: int) -> None:
    """Make the change called ``name`` to each of ``layers``, which are alike.

    Where Keras refuses it, it refuses it to all.
    """
    raised = set()
    for layer in layers:
        try:
            CHANGES[name][0](layer, n)
            raised.add(None)
        except Exception as error:
            raised.add(type(error).__name__)
    assert len(raised) == 1, f"{name} raised {raised}"
