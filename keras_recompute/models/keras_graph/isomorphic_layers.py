"""Layers that differ in nothing but the values of their weights, as the blocks of a deep model do.

One of them can stand for all, given the weights of the one that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from ...engine.calls import PLAIN, LeakedTensor
from ...seams.keras.layers import BOOKKEEPING, layers_in
from .fingerprint import Fingerprint, Fingerprints, same_object


def structural_fingerprint(operation: Any, fingerprints: Fingerprints) -> Fingerprint:
    """Return what isomorphic operations are equal in; the identity of one that has none."""
    if not _can_be_stood_for(operation):
        return same_object(operation)
    found = fingerprints.of(operation)
    # A function that counts its calls outside of itself does something else in each.
    return same_object(operation) if found.code.rebinds else found


def _can_be_stood_for(operation: Any) -> bool:
    """Whether one call may be run for several operations with other weights.

    Not of a layer that changes a variable when it is called (random numbers, statistics), adds a
    loss, or runs a function or model of its own.
    """
    if not isinstance(operation, keras.Operation):
        return False
    if isinstance(operation, (keras.layers.Lambda, keras.Model)):
        return False
    if not isinstance(operation, keras.layers.Layer):
        return True
    adds_loss = getattr(operation, "activity_regularizer", None) is not None
    return not operation.non_trainable_variables and not adds_loss


def isomorphic_layers(
    sections: Sequence[Sequence[Any]],
) -> tuple[tuple[keras.layers.Layer, ...], ...]:
    """Return the corresponding layers of all ``sections``, for each place where they differ.

    Layers without weights are left out.
    """
    found = []
    for layers in dict.fromkeys(zip(*sections)):
        is_different = len(set(layers)) > 1
        if is_different and getattr(layers[0], "variables", None):
            found.append(layers)
    return tuple(found)


def weights_of(groups: Sequence[Sequence[keras.layers.Layer]]) -> list[tuple[Any, ...]]:
    """Return every weight of isomorphic layers, with one value per section."""
    weights: list[tuple[Any, ...]] = []
    for layers in groups:
        weights.extend(zip(*map(_values_of, layers)))
    return weights


def _values_of(layer: keras.layers.Layer) -> list[Any]:
    return [variable.value for variable in layer.variables]


def substituted_weights(
    groups: Sequence[Sequence[keras.layers.Layer]], weights: Sequence[tf.Tensor]
) -> Any:
    """Return a context in which the first of the layers of each group have ``weights``.

    These are one section's share of each stack, ``(1, *shape)``.
    """
    variables: list[Any] = []
    for layers in groups:
        variables.extend(layers[0].variables)
    shares = [(v, tf.squeeze(w, axis=0)) for v, w in zip(variables, weights)]
    return keras.StatelessScope(state_mapping=shares)


def _attributes_of(layers: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(vars(layer)) for layer in layers]


@contextmanager
def sharing_changes(groups: Sequence[Sequence[keras.layers.Layer]]) -> Iterator[None]:
    """Give what calls of the first layers set in themselves to the layers that they stand for.

    A layer that counts its calls would differ from the others once the loop is traced. Only values
    without contents are given, and those in place of tensors that have no value outside.
    """
    firsts = [layers_in(layers[0]) for layers in groups]
    before = list(map(_attributes_of, firsts))
    yield
    for layers, inside, states in zip(groups, firsts, before):
        others = list(map(layers_in, layers[1:]))
        for number, (each, state) in enumerate(zip(inside, states)):
            given = {}
            for name, value in vars(each).items():
                is_changed = state.get(name, each) is not value
                if is_changed and _can_be_given(name, value):
                    given[name] = value
            for other in others:
                vars(other[number]).update(given)


def _can_be_given(name: str, value: Any) -> bool:
    return name not in BOOKKEEPING and (type(value) in PLAIN or isinstance(value, LeakedTensor))
