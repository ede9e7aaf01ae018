"""Equal traces in one graph share one gradient and one partition.

To differentiate and to partition a function takes longer than to trace it. Blocks of a deep model
trace to the same operations on other variables, whatever Python code they are. What was made of the
first of them is written for the others with their variables in place of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ...seams.tensorflow.gradients import library_gradient
from ...seams.tensorflow.operations import COLOCATION, GRADIENT
from ...seams.tensorflow.tensors import is_of
from ..capture.trace import Trace
from ..graph.annotations import MARK
from ..graph.dataflow import names_of
from ..graph.graph_state import kept_with
from ..partition.partition import Partition

_ATTRIBUTE = "_keras_recompute_equal_traces"
# Attributes of operations that say nothing of what they compute.
_NAMES = ("_user_specified_name", COLOCATION, GRADIENT)


@dataclass(frozen=True)
class _Entry:
    names: Sequence[str]
    partition: Partition


def share_partition(traced: Trace, kind: Hashable, make: Callable[[], Partition]) -> Partition:
    """Return the partition of an equal trace of this graph, rebound to the variables of ``traced``.

    Calls ``make`` where there is none, and in eager code. ``kind`` holds what a partition depends
    on beside the trace.
    """
    digest = None if tf.executing_eagerly() else _digest(traced)
    if digest is None:
        return make()

    known: dict[Hashable, list[_Entry]]
    known = kept_with(tf.compat.v1.get_default_graph(), _ATTRIBUTE)
    entries = known.setdefault((digest, traced.target, kind), [])
    # ``make`` adds the gradient to the graph.
    names = names_of(traced.graph.get_operations())
    for entry in entries:
        renames = _renames(entry.names, names)
        if renames is not None:
            return entry.partition.rebound_to(traced.variables, renames)

    partition = make()
    joint = partition.joint
    # Reasons name operations. The gradient may read what the function does not.
    if not joint.no_gradient_reasons and len(joint.trace.handles) == len(traced.handles):
        entries.append(_Entry(names, partition))
    return partition


def _digest(traced: Trace) -> Hashable:
    """Return what equal traces have in common: all but variables and names.

    None where a gradient, a loop or a branch is a function of its own, or a resource is none of the
    variables.
    """
    variables = {id(variable.handle) for variable in traced.variables}
    if traced.captures or not all(id(handle) in variables for _, handle in traced.handles):
        return None

    operations = traced.graph.get_operations()
    position = {operation: number for number, operation in enumerate(operations)}

    def places(tensors: Iterable[tf.Tensor]) -> list[tuple[int, int]]:
        return [(position[tensor.op], tensor.value_index) for tensor in tensors]

    found = hashlib.sha256()
    for operation in operations:
        node = operation.node_def
        gradient = _gradient_of(node, traced.graph, places)
        if gradient is None or any(map(_holds_function, node.attr.values())):
            return None
        for name in _NAMES:
            node.attr.pop(name, None)
        node.name = ""
        del node.input[:]
        awaited = sorted(map(position.__getitem__, operation.control_inputs))
        found.update(node.SerializeToString(deterministic=True))
        found.update(repr((places(operation.inputs), awaited, gradient)).encode())
    for variable in traced.variables:
        kind = type(variable), variable.shape, variable.dtype, variable.trainable
        found.update(repr(kind).encode())
    ends = [*traced.arguments, *traced.outputs, *(placeholder for placeholder, _ in traced.handles)]
    found.update(repr((places(ends), places(traced.graph.inputs))).encode())
    return found.digest()


def _gradient_of(
    node: Any, graph: Any, places: Callable[[Iterable[tf.Tensor]], list[Any]]
) -> Hashable:
    """Return what the custom gradients of equal operations have in common; () without one.

    None where that is not known, as of a user's functions.
    """
    if GRADIENT not in node.attr:
        return ()
    function = library_gradient(node.attr[GRADIENT].s.decode())
    if function is None:
        return None
    name, captured = function
    values: list[Any] = []
    for value in captured:
        if is_of(value, graph):
            values.append(places([value]))
        elif isinstance(value, (bool, int, float, str)):
            values.append(value)
        else:
            return None
    return repr((name, values))


def _holds_function(attribute: Any) -> bool:
    return bool(attribute.HasField("func") or attribute.list.func)


def _renames(before: Sequence[str], after: Sequence[str]) -> dict[str, str] | None:
    """Return the parts of names ``after`` by those ``before``; None where that is not one each.

    Annotations are names too, and must agree.
    """
    found: dict[str, str] = {}
    for one, other in zip(before, after):
        ours, theirs = one.split("/"), other.split("/")
        if len(ours) != len(theirs):
            return None
        for a, b in zip(ours, theirs):
            is_annotation = a.startswith(MARK) or b.startswith(MARK)
            if found.setdefault(a, b) != b or (is_annotation and a != b):
                return None
    return found
