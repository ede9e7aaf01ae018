"""Slices of a graph: the operations that lead from given tensors to wanted ones, in order."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from ...graph_traversal import topological_order
from ..capture.original_control_flow import input_count
from ..capture.trace import Port
from ..graph.annotations import is_alternative
from ..graph.dataflow import port_refs, tensor_refs
from ..graph.variables_by_value import original_handle

Handles = Iterable[tuple[tf.Tensor, tf.Tensor]]


def operations_between(
    targets: Iterable[tf.Tensor],
    ports: Iterable[Port],
    handles: Handles,
    *,
    always: Iterable[tf.Operation] = (),
    replays: frozenset[tf.Operation] = frozenset(),
    original_definitions: Mapping[tf.Operation, Any] = MappingProxyType({}),
) -> tuple[tf.Operation, ...]:
    """Return the operations that lead from ``ports`` and ``handles`` to ``targets``, in order.

    Each comes after the operations that it reads. Operations in ``always`` are included with what
    they need. The order of creation would not do: TensorFlow rewrites a loop when it differentiates
    it, after which the loop reads operations younger than itself.
    """
    given = given_refs(ports, handles)
    roots = list(always)
    kept_control = set(roots)

    def add_producers(tensors: Iterable[tf.Tensor], found: list[tf.Operation]) -> None:
        found.extend(tensor.op for tensor in tensors if tensor.ref() not in given)

    def needed(operation: tf.Operation) -> list[tf.Operation]:
        found: list[tf.Operation] = []
        add_producers(inputs_of(operation, replays, original_definitions), found)
        found.extend(op for op in operation.control_inputs if op in kept_control)
        return found[::-1]

    add_producers(targets, roots)

    return tuple(topological_order(roots, needed))


def given_refs(ports: Iterable[Port], handles: Handles) -> set[Any]:
    """Return references to the tensors that a program is given: its ports and handles."""
    placeholders = map(operator.itemgetter(0), handles)
    return port_refs(ports) | tensor_refs(placeholders)


def inputs_of(
    operation: tf.Operation,
    replays: frozenset[tf.Operation],
    original_definitions: Mapping[tf.Operation, Any] = MappingProxyType({}),
) -> list[tf.Tensor]:
    """Return what ``operation`` reads in a program.

    An annotated operation reads its alternative if it is in ``replays``. An operation in
    ``original_definitions`` reads what it did before differentiation.
    """
    if is_alternative(operation):
        return [operation.inputs[1 if operation in replays else 0]]
    inputs = operation.inputs
    if operation in original_definitions:
        inputs = inputs[: input_count(original_definitions[operation])]
    return [original_handle(t) if t.dtype == tf.resource else t for t in inputs]
