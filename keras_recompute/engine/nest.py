"""The arguments or results of a call, taken apart into tensors and a template, and put together again.

Tensors are what a program is fed and what it returns. Everything else (structure, None, bools, numbers, strings, layers)
belongs to the template, which is part of which program it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..errors import InvalidArgumentError
from ..seams.keras.layers import hang_mask, mask_of
from ..seams.tensorflow.tensors import is_composite, is_eager


class Same:
    """Wraps an object so that it is equal to itself only. Keeps the object, so that its identity is not reused."""

    def __init__(self, value: Any) -> None:
        # Every access to a method makes a new object.
        self._parts = (value.__self__, value.__func__) if inspect.ismethod(value) else (value,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and [id(p) for p in self._parts] == [id(p) for p in other._parts]

    def __hash__(self) -> int:
        return hash(tuple(id(part) for part in self._parts))


@dataclass(frozen=True)
class _Dense:
    """One tensor, followed by its mask if Keras hung one on it."""

    masked: bool
    count = property(lambda self: 1 + self.masked)

    def fill(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        if self.masked:
            hang_mask(*tensors)
        return tensors[0]


@dataclass(frozen=True)
class _Composite:
    """The components of a ragged or sparse tensor."""

    spec: tf.TypeSpec
    count: int

    def fill(self, tensors: Sequence[tf.Tensor]) -> Any:
        return tf.nest.pack_sequence_as(self.spec, list(tensors), expand_composites=True)


@dataclass(frozen=True)
class _Static:
    """Anything but a tensor. Plain values are equal by value, all else by identity."""

    key: Any
    value: Any
    count = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def fill(self, _: Sequence[tf.Tensor]) -> Any:
        return self.value


_Slot = _Dense | _Composite | _Static


@dataclass(frozen=True)
class Template:
    """A nest without its tensors. Two are equal if one program can serve both."""

    slots: tuple[_Slot, ...]
    outline: Any
    structure: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and (self.slots, self.outline) == (other.slots, other.outline)

    def __hash__(self) -> int:
        return hash((self.slots, self.outline))

    def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Return the nest with ``tensors`` in it."""
        leaves, start = [], 0
        for slot in self.slots:
            leaves.append(slot.fill(tensors[start : start + slot.count]))
            start += slot.count
        return tf.nest.pack_sequence_as(self.structure, leaves)

    @property
    def others(self) -> list[Any]:
        """What is in the nest beside tensors."""
        return [slot.value for slot in self.slots if isinstance(slot, _Static)]

    def paths(self, parameters: Sequence[str] = ()) -> list[str]:
        """Return for each tensor its place in ``(args, kwargs)``, such as ``params[0]``, given the parameters' names."""
        args, kwargs = self.structure
        named = [(parameters[n] if n < len(parameters) else f"argument {n}", value) for n, value in enumerate(args)]
        named += [(name, kwargs[name]) for name in sorted(kwargs)]
        leaves = [path for name, value in named for path in _paths(value, name)]
        return [path for path, slot in zip(leaves, self.slots) for _ in range(slot.count)]


def split(nest: Any) -> tuple[list[tf.Tensor], Template]:
    """Return the tensors of ``nest`` and its template. NumPy arrays and scalars become tensors of their own type."""
    tensors: list[tf.Tensor] = []
    slots: list[_Slot] = []
    for leaf in tf.nest.flatten(nest):
        if isinstance(leaf, (tf.Tensor, np.ndarray, np.generic)):
            mask = mask_of(leaf)
            tensors += [tf.convert_to_tensor(leaf)] if mask is None else [leaf, mask]
            slots.append(_Dense(mask is not None))
        elif is_composite(leaf) and not isinstance(leaf, tf.Variable):
            components = tf.nest.flatten(leaf, expand_composites=True)
            tensors += components
            slots.append(_Composite(tf.type_spec_from_value(leaf), len(components)))
        else:
            slots.append(_Static(_static_key(leaf), leaf))
    return tensors, Template(tuple(slots), _outline(nest), tf.nest.map_structure(lambda _: 0, nest))


def check_arguments(tensors: Sequence[tf.Tensor], template: Template, *, function: str, parameters: Sequence[str]) -> None:
    """Raise InvalidArgumentError for an argument that no program can be fed, naming the argument and ``function``."""
    for slot, path in zip(template.slots, _leaf_paths(template, parameters)):
        if isinstance(slot, _Static) and isinstance(slot.value, keras.KerasTensor):
            raise InvalidArgumentError(
                f"{function!r} was called with the symbolic Keras tensor {slot.value.name!r} as {path}: a checkpointed "
                f"function works on values. In a functional model put a RecomputationCheckpoint layer behind the layers "
                f"and build it as a keras_recompute.Model."
            )
    for tensor, path in zip(tensors, template.paths(parameters)):
        if not is_known_here(tensor):
            raise InvalidArgumentError(
                f"{function!r} was called with {tensor.name!r} as {path}: a tensor of another graph, whose value is not known "
                f"here. Call it where that tensor is made, or return the tensor from its tf.function first."
            )


def is_known_here(tensor: tf.Tensor) -> bool:
    """Whether ``tensor`` has a value, or belongs to a graph under construction."""
    if is_eager(tensor):
        return True
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None and graph is not tensor.graph:
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of the positional parameters of ``function``."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _static_key(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, (bool, int, str, bytes)):
        return type(leaf), leaf
    if isinstance(leaf, (float, complex)):
        return type(leaf), repr(leaf)  # unlike the values themselves, nan is nan and -0.0 is not 0.0
    return Same(leaf)


def _outline(nest: Any) -> Any:
    if isinstance(nest, Mapping):
        return type(nest), tuple((key, _outline(value)) for key, value in nest.items())
    if isinstance(nest, (list, tuple)):
        return type(nest), tuple(_outline(value) for value in nest)
    return type(nest) if tf.nest.is_nested(nest) else None


def _leaf_paths(template: Template, parameters: Sequence[str]) -> list[str]:
    return Template(tuple(_Dense(False) for _ in template.slots), None, template.structure).paths(parameters)


def _paths(value: Any, path: str) -> list[str]:
    if isinstance(value, Mapping):
        return [p for key in sorted(value) for p in _paths(value[key], f"{path}[{key!r}]")]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [p for field in value._fields for p in _paths(getattr(value, field), f"{path}.{field}")]
    if isinstance(value, (list, tuple)):
        return [p for n, item in enumerate(value) for p in _paths(item, f"{path}[{n}]")]
    return [path] * len(tf.nest.flatten(value))
