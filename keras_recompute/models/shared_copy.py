"""A model beside a model: an object of the same class that shares layers, weights and attributes, and trains on its own.

KerasHub's backbones and tasks are functional models whose classes add methods: ``generate``, a preprocessor, a configuration
of their own. Such a model is made again without running its ``__init__``, from its graph and its attributes, as an object of a
class that derives from both a class of ours and that of the model. It has a state of training of its own (compiled or not,
optimizer, history), so the model itself stays as it was.
"""

from __future__ import annotations

from typing import Any

import keras

from ..layers.mixed_class import OURS, mixed_class, original_class
from ..seams.keras.construction import copy_without_constructor


def copy_sharing_weights(model: keras.Model, ours: type) -> Any:
    """Return a model that is an ``ours`` and of the class of ``model``, with its layers, weights and attributes.

    ``model`` is functional, or built. The result is not compiled.
    """
    return copy_without_constructor(model, mixed_class(original_class(type(model)), ours), without=OURS)
