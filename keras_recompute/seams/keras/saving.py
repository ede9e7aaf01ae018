"""How Keras pickles a layer or a model."""

from __future__ import annotations

from typing import Any

import keras


def reduce_layer(layer: keras.layers.Layer) -> tuple[Any, ...]:
    """Return ``layer.__reduce__`` for a layer whose class pickle cannot import."""
    # Keras returns a method of the layer's class, which pickle would look up by that class; the
    # method itself does not depend on it.
    _, arguments = keras.layers.Layer.__reduce__(layer)
    return keras.layers.Layer._unpickle_model, arguments
