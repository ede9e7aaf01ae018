"""Copies of models that share layers, weights and attributes, but train on their own.

KerasHub's backbones and tasks are functional models whose classes add methods: ``generate``, a
preprocessor, a configuration of their own. Such a model is copied without running its ``__init__``,
from its graph and its attributes. The class of the copy derives from both a class of this package
and that of the model. The copy has a state of training of its own (compiled or not, optimizer,
history), so the model itself stays as it was.
"""

from __future__ import annotations

from typing import Any

import keras

from ..layers.mixed_class import OURS, mixed_class, original_class
from ..seams.keras.construction import copy_without_constructor


def copy_sharing_weights(model: keras.Model, ours: type) -> Any:
    """Return a copy of ``model`` of its class and of the class ``ours``.

    It shares layers, weights and attributes with ``model``, which is functional, or built. The
    result is not compiled.
    """
    return copy_without_constructor(
        model, mixed_class(original_class(type(model)), ours), without=OURS
    )
