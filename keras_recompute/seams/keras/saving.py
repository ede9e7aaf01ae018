"""How Keras saves and pickles a layer or a model."""

from __future__ import annotations

from typing import Any

import keras


def reduce_layer(layer: keras.layers.Layer) -> tuple[Any, ...]:
    """Return what ``layer.__reduce__`` does for a class that pickle finds, where it would not find that of ``layer``.

    Keras hands on a method of the layer's class, which does not depend on the class.
    """
    _, arguments = keras.layers.Layer.__reduce__(layer)
    return keras.layers.Layer._unpickle_model, arguments
