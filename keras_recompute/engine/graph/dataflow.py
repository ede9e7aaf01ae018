"""The dataflow of a graph: which operations make what an operation reads, and sets of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

# The size of a batch that is not known: Keras's own.
ASSUMED_BATCH = 32

T = TypeVar("T")
Result = TypeVar("Result")


def tensor_refs(tensors: Iterable[tf.Tensor]) -> set[Any]:
    """Return references to ``tensors``, which have no hash themselves."""
    return {tensor.ref() for tensor in tensors}


def port_refs(ports: Iterable[Iterable[tf.Tensor]]) -> set[Any]:
    """Return references to the tensors of all ``ports``."""
    return {tensor.ref() for port in ports for tensor in port}


def tensor_specs(tensors: Iterable[Any]) -> list[tf.TensorSpec]:
    """Return the shapes and types of ``tensors``, or of what else has these."""
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]


def pick(values: Sequence[Any] | Mapping[Any, Any], keys: Iterable[Any]) -> list[Any]:
    """Return the values with these ``keys``: numbers in a sequence, or the keys of a mapping."""
    return [values[key] for key in keys]


def put(values: list[Any], numbers: Iterable[int], new: Iterable[Any]) -> None:
    """Replace the ``values`` with these ``numbers`` by ``new`` ones."""
    for number, value in zip(numbers, new):
        values[number] = value


def is_differentiable(tensor: tf.Tensor) -> bool:
    """Whether ``tensor`` is of a type that has gradients."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def present(values: Iterable[T | None]) -> list[T]:
    """Return those of ``values`` that are not None."""
    return [value for value in values if value is not None]


def numbers_present(values: Iterable[Any]) -> list[int]:
    """Return the numbers of those of ``values`` that are not None."""
    return [number for number, value in enumerate(values) if value is not None]


def map_present(function: Callable[[T], Result], values: Iterable[T | None]) -> list[Result | None]:
    """Return ``function`` of each of ``values``, and None where one is None."""
    return [None if value is None else function(value) for value in values]


def makers(tensors: Iterable[tf.Tensor]) -> list[tf.Operation]:
    """Return the operation that makes each of ``tensors``."""
    return list(map(operator.attrgetter("op"), tensors))


def names_of(named: Iterable[Any]) -> list[str]:
    """Return the names of tensors or operations."""
    return list(map(operator.attrgetter("name"), named))


def kinds(operations: Iterable[tf.Operation]) -> set[str]:
    """Return the types of ``operations``, such as ``"MatMul"``."""
    return set(map(operator.attrgetter("type"), operations))


def has_static_shapes(tensors: Iterable[tf.Tensor]) -> bool:
    """Whether the shapes of all ``tensors`` are known."""
    return all(tensor.shape.is_fully_defined() for tensor in tensors)


def producers(operation: tf.Operation) -> list[tf.Operation]:
    """Return the operations that make the tensors which ``operation`` reads."""
    return makers(operation.inputs)


def consumers(operation: tf.Operation) -> list[tf.Operation]:
    """Return the operations that read what ``operation`` makes."""
    return [reader for tensor in operation.outputs for reader in tensor.consumers()]


def resource_inputs(operation: tf.Operation) -> list[int]:
    """Return the numbers of the inputs of ``operation`` that are handles."""
    return [number for number, t in enumerate(operation.inputs) if t.dtype == tf.resource]


def operations_before(operation: tf.Operation) -> list[tf.Operation]:
    """Return the operations that ``operation`` waits for, by tensors or control dependencies."""
    return [*producers(operation), *operation.control_inputs]
