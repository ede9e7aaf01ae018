"""The dataflow of a graph: which operations make what an operation reads, and sets of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf


def tensor_refs(tensors: Iterable[tf.Tensor]) -> set[Any]:
    """Return references to ``tensors``, which have no hash themselves."""
    return {tensor.ref() for tensor in tensors}


def port_refs(ports: Iterable[Iterable[tf.Tensor]]) -> set[Any]:
    """Return references to the tensors of all ``ports``."""
    return {tensor.ref() for port in ports for tensor in port}


def tensor_specs(tensors: Iterable[Any]) -> list[tf.TensorSpec]:
    """Return the shapes and types of ``tensors``, or of what else has these."""
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]


def pick(tensors: Sequence[tf.Tensor], numbers: Iterable[int]) -> list[tf.Tensor]:
    """Return the tensors with these ``numbers``."""
    return [tensors[number] for number in numbers]


def is_differentiable(tensor: tf.Tensor) -> bool:
    """Whether ``tensor`` is of a type that has gradients."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def producers(operation: tf.Operation) -> list[tf.Operation]:
    """Return the operations that make the tensors which ``operation`` reads."""
    return [tensor.op for tensor in operation.inputs]


def operations_before(operation: tf.Operation) -> list[tf.Operation]:
    """Return the operations that ``operation`` waits for, by tensors or control dependencies."""
    return [*producers(operation), *operation.control_inputs]
