"""Loops and branches as they were traced, for programs that their gradients have no part in.

Differentiating a loop or a branch rewrites it in place: it then returns what its gradient reads too, a list for each value of
a loop. A forward program that saves none of that copies the operation as it was before: it is smaller, and XLA, which has no
lists of unknown length, compiles an unbounded loop. Memory is the same; compilers drop lists that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from .graph_state import graph_state
from .op_sets import LOOPS
from .variables_by_value import BRANCHES

_DEFINITIONS = "_keras_recompute_as_traced"


def snapshot_control_flow(graph: Any) -> None:
    """Note how the loops and branches of ``graph`` are defined, which is about to be differentiated."""
    known = graph_state(graph, _DEFINITIONS)
    for operation in graph.get_operations():
        if operation.type in LOOPS or operation.type in BRANCHES:
            known.setdefault(operation, operation.node_def)


def original_definitions(
    graph: Any, operations: Iterable[tf.Operation], outputs: Iterable[tf.Tensor]
) -> dict[tf.Operation, Any]:
    """Return the earlier definitions of those of ``operations`` of whose later results a program needs none.

    The program consists of ``operations`` and returns ``outputs``.
    """
    known: Mapping[tf.Operation, Any] = graph_state(graph, _DEFINITIONS)
    rewritten = [op for op in operations if op in known and len(op.outputs) > output_count(known[op])]
    if not rewritten:
        return {}
    read = {t.ref() for op in operations for t in op.inputs} | {t.ref() for t in outputs}
    return {op: known[op] for op in rewritten if not any(t.ref() in read for t in op.outputs[output_count(known[op]) :])}


def output_count(definition: Any) -> int:
    """Return the number of results of a loop or branch of this NodeDef."""
    return len(definition.attr["T" if definition.op in LOOPS else "Tout"].list.type)


def input_count(definition: Any) -> int:
    """Return the number of tensors that an operation of this NodeDef reads."""
    return sum(not name.startswith("^") for name in definition.input)
