"""Which operations may run a second time.

The engine's one rule about state: **only pure operations are ever replayed; the result of any other is always saved**.
A random mask is therefore recomputed from its saved seed, a batch norm updates its statistics once, a print prints once.

TensorFlow marks operations as stateful by their type. Two corrections are needed: reading a variable that the function
never assigns is pure, and an operation that calls functions (a loop, a branch, a call) is as pure as what it calls.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
_PURE_ALTHOUGH_MARKED = ("Placeholder", "PartitionedCall", "StatefulPartitionedCall", "While", "If", "Case")


class Purity:
    """Answers, for the operations of one traced graph, whether they may be replayed."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._function_is_pure: dict[str, bool] = {}
        self._assigned: set[Any] = set()
        for operation in graph.get_operations():
            if operation.type in _READS or not operation._is_stateful:
                continue
            if operation.type not in _PURE_ALTHOUGH_MARKED or not self._calls_only_pure(operation.node_def):
                self._assigned.update(t.ref() for t in operation.inputs if t.dtype == tf.resource)

    def is_assigned(self, handle: tf.Tensor) -> bool:
        """Whether the function may change what ``handle`` refers to."""
        return handle.ref() in self._assigned

    def is_pure(self, operation: tf.Operation) -> bool:
        """Whether running ``operation`` again gives the same result and no other effect."""
        if not operation._is_stateful:
            return True
        if any(self.is_assigned(t) for t in operation.inputs if t.dtype == tf.resource):
            return False
        return self._node_is_pure(operation.node_def)

    def _node_is_pure(self, node: Any) -> bool:
        if node.op in _READS:
            return True
        if node.op in _PURE_ALTHOUGH_MARKED:
            return self._calls_only_pure(node)
        definition = op_def_registry.get(node.op)
        return definition is not None and not definition.is_stateful

    def _calls_only_pure(self, node: Any) -> bool:
        return all(self._named_function_is_pure(name) for name in called_by(node))

    def _named_function_is_pure(self, name: str) -> bool:
        if name not in self._function_is_pure:
            self._function_is_pure[name] = True  # a recursive call adds nothing of its own
            # Differentiation adds functions after the graph was traced. ``as_graph_def()`` has them too, but leaves a copy of
            # the definition of each with it, and of nested ones with every function around them.
            function = self._graph._get_function(name)
            is_known = function is not None
            self._function_is_pure[name] = is_known and all(self._node_is_pure(n) for n in function.definition.node_def)
        return self._function_is_pure[name]


def called_by(node: Any) -> list[str]:
    """Return the names of the functions that the operation of a NodeDef calls."""
    called = [a.func.name for a in node.attr.values() if a.HasField("func")]
    return called + [f.name for a in node.attr.values() for f in a.list.func]
