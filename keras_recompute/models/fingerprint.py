"""The attributes of layers in a form to compare: equal forms compute the same, given the same weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

_SIMPLE = (type(None), bool, int, float, str)
_IN_THE_VARIABLES = (keras.initializers.Initializer, keras.random.SeedGenerator)  # is all that these do for a call
_SAID_BY_CONFIG = (keras.dtype_policies.DTypePolicy, keras.regularizers.Regularizer)


def form(value: Any, of_operation: Callable[[Any], Any]) -> Any:
    """Return ``value`` in a form to compare: variables by shape and type, Keras's objects by configuration.

    ``of_operation`` says it of layers and other operations; what nothing is known about is equal to itself alone.
    """
    if isinstance(value, _SIMPLE):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return tuple(form(item, of_operation) for item in value)
    if isinstance(value, dict):
        return tuple((key, form(item, of_operation)) for key, item in value.items())
    if isinstance(value, keras.Variable):
        return tuple(value.shape), value.dtype
    if isinstance(value, _IN_THE_VARIABLES):
        return type(value)
    if isinstance(value, _SAID_BY_CONFIG):
        return type(value), form(value.get_config(), of_operation)
    if isinstance(value, keras.Operation):
        return of_operation(value)
    return id(value)


def attribute_fingerprint(operation: keras.Operation, of_operation: Callable[[Any], Any]) -> Any:
    """Return the form of what ``operation`` holds beside what every layer has, and of its data types."""
    own = {name: item for name, item in vars(operation).items() if name not in _of_every_layer()}
    return form([getattr(operation, "dtype_policy", None), own], of_operation)


@functools.cache
def _of_every_layer() -> frozenset[str]:
    """Return the names of the attributes that every layer has."""
    layer = keras.layers.Layer()
    layer.inner = keras.layers.Layer()  # TensorFlow takes notes of what a layer holds
    return frozenset(vars(layer)) - {"inner"}
