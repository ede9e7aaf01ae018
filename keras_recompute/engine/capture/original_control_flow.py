"""The original definitions of loops and branches, before they were differentiated.

Differentiation rewrites a loop or a branch in place, so that it also returns what its gradient
reads: for a loop, a list of each such value. A forward program that saves none of these copies the
original operation instead. It is smaller, and XLA, which has no lists of unknown length, can
compile an unbounded loop. Memory is the same, because compilers drop lists without readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from ..graph.dataflow import port_refs, tensor_refs
from ..graph.graph_state import kept_with
from ..graph.op_sets import LOOPS
from ..graph.variables_by_value import BRANCHES, data_inputs

_DEFINITIONS = "_keras_recompute_as_traced"


def snapshot_control_flow(graph: Any) -> None:
    """Note the definitions of all loops and branches of ``graph``, before it is differentiated."""
    known = kept_with(graph, _DEFINITIONS)
    for operation in graph.get_operations():
        if operation.type in LOOPS or operation.type in BRANCHES:
            known.setdefault(operation, operation.node_def)


def original_definitions(
    graph: Any, operations: Iterable[tf.Operation], outputs: Iterable[tf.Tensor]
) -> dict[tf.Operation, Any]:
    """Return the original NodeDef of each loop or branch whose added outputs are unused.

    The program consists of ``operations`` and returns ``outputs``.
    """
    known: Mapping[tf.Operation, Any] = kept_with(graph, _DEFINITIONS)
    rewritten = []
    for operation in operations:
        if operation in known and len(operation.outputs) > output_count(known[operation]):
            rewritten.append(operation)
    if not rewritten:
        return {}
    read = port_refs(op.inputs for op in operations) | tensor_refs(outputs)
    found = {}
    for operation in rewritten:
        added = operation.outputs[output_count(known[operation]) :]
        if read.isdisjoint(tensor_refs(added)):
            found[operation] = known[operation]
    return found


def output_count(definition: Any) -> int:
    """Return the number of outputs of a loop or branch with this NodeDef."""
    return len(definition.attr["T" if definition.op in LOOPS else "Tout"].list.type)


def input_count(definition: Any) -> int:
    """Return the number of tensors that an operation with this NodeDef reads."""
    return len(data_inputs(definition))
