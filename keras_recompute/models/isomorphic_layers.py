"""Twins: layers that differ in nothing but the values of their weights, as the blocks of a deep model do.

One of them can stand for all, given the weights of the one that it stands for. Only what Keras says of a layer is compared:
its type, its configuration without the name, and its weights' shapes. Where a layer's own ``get_config`` fails, as in some of
KerasHub's, what it holds is compared in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from .fingerprint import attribute_fingerprint


def structural_key(operation: Any) -> Any:
    """Return what twins of ``operation`` are equal in, or its identity where it can have none.

    A layer has none that changes a variable when it is called (random numbers, statistics), nor one that runs a function
    or holds other layers under names of their own.
    """
    if not isinstance(operation, keras.Operation) or isinstance(operation, (keras.layers.Lambda, keras.Model)):
        return id(operation)
    is_layer = isinstance(operation, keras.layers.Layer)
    if is_layer and (operation.non_trainable_variables or getattr(operation, "activity_regularizer", None) is not None):
        return id(operation)
    try:
        config = {name: value for name, value in operation.get_config().items() if name != "name"}
    except NotImplementedError:  # Keras's word for a layer that cannot be written down
        return id(operation)
    except Exception:
        config = attribute_fingerprint(operation, structural_key)
    weights = [(tuple(v.shape), v.dtype) for v in operation.variables] if is_layer else []
    return type(operation), config, weights


def twins_of(sections: Sequence[Sequence[Any]]) -> tuple[tuple[keras.layers.Layer, ...], ...]:
    """Return, for each layer with weights that is not the same one in all ``sections``, the layer of every section."""
    together = dict.fromkeys(zip(*sections))
    return tuple(layers for layers in together if len(set(layers)) > 1 and getattr(layers[0], "variables", None))


def stacked_weights(twins: Sequence[Sequence[keras.layers.Layer]]) -> list[tf.Tensor]:
    """Return every weight of the ``twins``, ``(sections, *shape)``."""
    return [tf.stack(weights) for layers in twins for weights in zip(*([v.value for v in t.variables] for t in layers))]


def substituted_weights(twins: Sequence[Sequence[keras.layers.Layer]], weights: Sequence[tf.Tensor]) -> Any:
    """Return a context in which the first of the ``twins`` have ``weights``, one section's share ``(1, *shape)`` of each."""
    variables = [variable for layers in twins for variable in layers[0].variables]
    return keras.StatelessScope(state_mapping=[(v, tf.squeeze(w, axis=0)) for v, w in zip(variables, weights)])
