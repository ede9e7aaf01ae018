"""Purity: the operations that may run a second time.

The engine has one rule about state: **only pure operations are replayed; the result of any other is
saved**. So a random mask is recomputed from its saved seed, a batch normalization updates its
statistics once, and a print prints once.

TensorFlow marks types of operations as stateful. Two corrections are needed. Reading a variable
that the function never assigns is pure. An operation that calls functions (a loop, a branch, a
call) is as pure as they are, and assigns those of its arguments that they assign.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ...seams.tensorflow.functions import find_function, registered_definition
from ...seams.tensorflow.operations import is_stateful, type_is_stateful
from ..graph.dataflow import pick, resource_inputs, tensor_refs
from ..graph.variables_by_value import BRANCHES, CALLING, PASSING_ON, READS, called_by, data_inputs

_PURE_ALTHOUGH_MARKED = ("Placeholder", *CALLING)


class Purity:
    """Answers, for the operations of one traced graph, whether they may be replayed."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._function_is_pure: dict[str, bool] = {}
        self._assigned_arguments: dict[str, set[int]] = {}
        self._assigned: set[Any] = set()
        for operation in graph.get_operations():
            handles = resource_inputs(operation)
            if handles:
                assigned = self._assigned_inputs(operation.node_def, handles)
                self._assigned |= tensor_refs(pick(operation.inputs, assigned))

    def is_assigned(self, handle: tf.Tensor) -> bool:
        """Whether the function may change what ``handle`` refers to."""
        return handle.ref() in self._assigned

    def is_pure(self, operation: tf.Operation) -> bool:
        """Whether running ``operation`` again gives the same result and has no other effect."""
        if not is_stateful(operation):
            return True
        if any(map(self.is_assigned, pick(operation.inputs, resource_inputs(operation)))):
            return False
        return self._node_is_pure(operation.node_def)

    def _node_is_pure(self, node: Any) -> bool:
        if node.op in READS:
            return True
        if node.op in _PURE_ALTHOUGH_MARKED:
            return self._calls_only_pure(node)
        return not type_is_stateful(node.op)

    def _calls_only_pure(self, node: Any) -> bool:
        return all(map(self._named_function_is_pure, called_by(node)))

    def _named_function_is_pure(self, name: str) -> bool:
        if name not in self._function_is_pure:
            # A recursive call adds nothing of its own.
            self._function_is_pure[name] = True
            definition = self._definition(name)
            self._function_is_pure[name] = definition is not None and all(
                map(self._node_is_pure, definition.node_def)
            )
        return self._function_is_pure[name]

    def _definition(self, name: str) -> Any:
        """Return the FunctionDef of a function that the graph calls, directly or not.

        None for an unknown one.
        """
        # Differentiation adds functions after the graph was traced. ``as_graph_def()`` has them
        # too, but leaves a copy of the definition of each with it, and of nested ones with every
        # function around them.
        function = find_function(self._graph, name)
        # A loop that is traced under a persistent tape stands in a function whose own functions no
        # graph knows.
        return registered_definition(name) if function is None else function.definition

    def _assigned_inputs(self, node: Any, handles: Iterable[int]) -> set[int]:
        """Return which of the inputs ``handles`` of ``node`` it may change.

        These are all, unless it only reads them or passes them on.
        """
        if node.op in CALLING:
            # The first input of a branch says which function to call.
            own = 1 if node.op in BRANCHES else 0
            assigned = set().union(*map(self._assigned_by_function, called_by(node)))
            return {number for number in handles if number - own in assigned}
        is_read = node.op in READS and not node.attr["batch_dims"].i
        return set() if is_read or node.op in PASSING_ON else set(handles)

    def _assigned_by_function(self, name: str) -> set[int]:
        if name not in self._assigned_arguments:
            self._assigned_arguments[name] = set()
            definition = self._definition(name)
            resource = tf.resource.as_datatype_enum
            handles = {}
            for number, argument in enumerate(definition.signature.input_arg):
                if argument.type == resource:
                    handles[argument.name] = number
            for node in definition.node_def:
                given = {}
                for number, source in enumerate(data_inputs(node)):
                    if source in handles:
                        given[number] = handles[source]
                assigned = self._assigned_inputs(node, given)
                self._assigned_arguments[name].update(pick(given, assigned))
        return self._assigned_arguments[name]
