"""``keras.engine.input_layer``: Keras 2's module of input layers."""

from __future__ import annotations

from keras import Input
from keras.layers import InputLayer

__all__ = ["Input", "InputLayer"]
