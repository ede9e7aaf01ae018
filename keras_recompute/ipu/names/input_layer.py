"""``keras.engine.input_layer``: where Keras 2 keeps inputs."""

from __future__ import annotations

from keras import Input
from keras.layers import InputLayer

__all__ = ["Input", "InputLayer"]
