"""Variables by value: operations that read a variable through its handle read a tensor instead.

A traced function refers to a variable by its handle. Operations that call functions (loops,
branches, nested ``tf.function``s) pass the handle on to reads inside. A replay of them would see
what was assigned since the forward pass. A program that is given the variable's value sees one
value in both passes. So handles become values in the operations, in the functions that they call,
and in the functions called by these.

Only copies are rewritten, on their way into another graph. The traced graph stays as it is, because
gradients that users wrote refer to its tensors.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from ...errors import InvalidProgramError
from ...graph_traversal import topological_order
from ...seams.tensorflow.functions import find_function, make_function
from ...seams.tensorflow.operations import COLOCATION, GRADIENT, ONLY_READ, SHAPES, type_is_stateful
from .op_sets import LOOPS

_OF_VALUES = {
    "ReadVariableOp": "Identity",
    "ResourceGather": "Gather",
    "ResourceGatherNd": "GatherNd",
    "VariableShape": "Shape",
}
READS = tuple(_OF_VALUES)
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
CALLING = (*LOOPS, *BRANCHES, *CALLS)
PASSING_ON = ("Identity", "IdentityN")
_STATELESS = {
    "While": "StatelessWhile",
    "If": "StatelessIf",
    "Case": "StatelessCase",
    "StatefulPartitionedCall": "PartitionedCall",
}

# Number of an input or output -> the type and shape of the value that stands there instead of a
# handle.
Values = Mapping[int, tf.TensorSpec]


class CaptureByValue:
    """Rewrites operations of ``graph`` to take values, with the functions that they call.

    The rewritten functions are collected by name in ``functions``.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._rewritten: dict[str, tuple[dict[int, tf.TensorSpec], bool]] = {}
        self.functions: dict[str, Any] = {}

    def rewrite(self, node: Any, given: Values) -> dict[int, tf.TensorSpec]:
        """Rewrite ``node``, a NodeDef, in place for inputs that are now values.

        ``given`` holds the number and the type of these inputs. Returns the same for the outputs
        that become values. Raises InvalidProgramError for an operation that needs a handle.
        """
        if node.op in _OF_VALUES:
            _read(node, *given.values())
            return {}
        if node.op in CALLING:
            return self._calling(node, given)
        if node.op in PASSING_ON:
            _set_types(node, "T", given)
            return dict(given)
        raise InvalidProgramError(
            f"{node.name!r} ({node.op}) reads a variable in a way that cannot be read from its "
            "value"
        )

    def _calling(self, node: Any, given: Values) -> dict[int, tf.TensorSpec]:
        called = []
        for attribute in node.attr.values():
            if attribute.HasField("func"):
                called.append(attribute.func)
            called.extend(attribute.list.func)
        # The first input of a branch says which of the functions to call.
        own = 1 if node.op in BRANCHES else 0
        arguments = {number - own: spec for number, spec in given.items()}
        returned: dict[int, tf.TensorSpec] = {}
        has_state = False
        for function in called:
            function.name, outputs, state = self._called(function.name, arguments)
            has_state |= state
            returned.update(outputs)
        for name in (ONLY_READ, GRADIENT):
            node.attr.pop(name, None)
        if node.op in LOOPS:
            # A loop hands on what it was given.
            returned = arguments
            _set_types(node, "T", returned)
        else:
            _set_types(node, "Tin", arguments)
            _set_types(node, "Tout", returned)
        if "output_shapes" in node.attr and node.attr["output_shapes"].list.shape:
            shapes = node.attr["output_shapes"].list.shape
            for number, spec in returned.items():
                shapes[number].CopyFrom(spec.shape.as_proto())
        if not has_state:
            node.op = _STATELESS.get(node.op, node.op)
        return returned

    def _called(self, name: str, arguments: Values) -> tuple[str, dict[int, tf.TensorSpec], bool]:
        """Return the name of the rewritten function, its outputs that are values, and its state.

        ``name`` is the function, and ``arguments`` are the arguments that become values.
        """
        definition = find_function(self._graph, name).definition
        types = [(number, s.dtype.name, str(s.shape)) for number, s in arguments.items()]
        content = definition.SerializeToString(deterministic=True) + repr(sorted(types)).encode()
        # Equal functions get one name, so that a graph holds each once.
        new_name = f"{name}_by_value_{hashlib.sha256(content).hexdigest()[:16]}"
        if new_name not in self._rewritten:
            definition.signature.name = new_name
            self._rewritten[new_name] = self._rewrite_function(definition, arguments)
            self.functions[new_name] = self._registered(definition)
        outputs, has_state = self._rewritten[new_name]
        return new_name, outputs, has_state

    def _rewrite_function(
        self, definition: Any, arguments: Values
    ) -> tuple[dict[int, tf.TensorSpec], bool]:
        signature = definition.signature
        values: dict[str, tf.TensorSpec] = {}
        for number, spec in arguments.items():
            argument = signature.input_arg[number]
            argument.type = spec.dtype.as_datatype_enum
            # What is noted of a handle would contradict the type of a value.
            argument.ClearField("handle_data")
            shapes = definition.arg_attr[number].attr[SHAPES].list
            shapes.ClearField("shape")
            shapes.shape.append(spec.shape.as_proto())
            definition.resource_arg_unique_id.pop(number, None)
            values[argument.name] = spec
        renamed: dict[str, str] = {}
        for node in _in_order(definition.node_def):
            given = {}
            for number, name in enumerate(data_inputs(node)):
                if name in values:
                    given[number] = values[name]
            if not given:
                continue
            # The output of a read is called value, that of the Identity in its place output.
            if node.op == "ReadVariableOp":
                renamed[f"{node.name}:value:0"] = f"{node.name}:output:0"
            outputs = self.rewrite(node, given)
            node.attr.pop(SHAPES, None)
            for number, spec in outputs.items():
                values[f"{node.name}:output:{number}"] = spec
        for node in definition.node_def:
            for number, name in enumerate(node.input):
                node.input[number] = renamed.get(name, name)
        outputs = {}
        for number, result in enumerate(signature.output_arg):
            source = renamed.get(definition.ret[result.name], definition.ret[result.name])
            definition.ret[result.name] = source
            if source in values:
                result.type = values[source].dtype.as_datatype_enum
                result.ClearField("handle_data")
                outputs[number] = values[source]
        # They name the gradient of the function that reads handles.
        for name in ("forward_function_name", "backward_function_name"):
            definition.attr.pop(name, None)
        has_state = any(type_is_stateful(node.op) for node in definition.node_def)
        signature.is_stateful = has_state
        return outputs, has_state

    def _registered(self, definition: Any) -> Any:
        """Return the function ``definition`` in the form that graphs take.

        TensorFlow knows it for as long as a graph has it.
        """
        children: dict[Any, Any] = {}
        for name in itertools.chain(*map(called_by, definition.node_def)):
            child = self.functions.get(name) or find_function(self._graph, name)
            for function in (child, *child.children):
                children[function.name] = function
        return make_function(definition, list(children.values()))


def original_handle(tensor: tf.Tensor) -> tf.Tensor:
    """Return the handle that loops, calls and identities pass on as ``tensor``."""
    while True:
        number = _handed_on(tensor.op.node_def, tensor.value_index, tensor.graph)
        if number is None:
            return tensor
        tensor = tensor.op.inputs[number]


def _handed_on(node: Any, output: int, graph: Any) -> int | None:
    """Return the number of the input that this output passes on, or None."""
    if node.op in LOOPS or node.op in PASSING_ON:
        return output
    if node.op not in CALLS:
        return None
    definition = find_function(graph, node.attr["f"].func.name).definition
    names = [argument.name for argument in definition.signature.input_arg]
    arguments = dict(zip(names, range(len(names))))
    nodes = {inner.name: inner for inner in definition.node_def}
    source = definition.ret[definition.signature.output_arg[output].name]
    while source not in arguments:
        name, *_, position = source.split(":")
        number = _handed_on(nodes[name], int(position), graph)
        if number is None:
            return None
        source = nodes[name].input[number]
    return arguments[source]


def _read(node: Any, spec: tf.TensorSpec) -> None:
    """Turn a read by handle into the operation that reads a value."""
    attributes = dict(node.attr)
    node.op = _OF_VALUES[node.op]
    for name in attributes:
        if name not in ("Tindices", "validate_indices", "out_type", COLOCATION):
            del node.attr[name]
    if node.op == "GatherNd":
        node.attr.pop("validate_indices", None)
    name = "Tparams" if node.op in ("Gather", "GatherNd") else "T"
    node.attr[name].type = spec.dtype.as_datatype_enum


def _set_types(node: Any, name: str, specs: Values) -> None:
    types = node.attr[name]
    # One type for the only input.
    if types.type:
        (spec,) = specs.values()
        types.type = spec.dtype.as_datatype_enum
    if types.list.type:
        for number, spec in specs.items():
            types.list.type[number] = spec.dtype.as_datatype_enum


def _in_order(nodes: Iterable[Any]) -> list[Any]:
    """Return the nodes of a function, each after the nodes that it reads."""
    named = {node.name: node for node in nodes}

    def sources(name: str) -> Iterator[str]:
        for source in reversed(data_inputs(named[name])):
            maker = source.split(":")[0]
            if maker in named:
                yield maker

    return list(map(named.__getitem__, topological_order(named, sources)))


def data_inputs(node: Any) -> list[str]:
    """Return the inputs of a node, without control dependencies."""
    return [name for name in node.input if not name.startswith("^")]


def called_by(node: Any) -> list[str]:
    """Return the names of the functions that the operation of a NodeDef calls."""
    single: list[str] = []
    listed: list[str] = []
    for attribute in node.attr.values():
        if attribute.HasField("func"):
            single.append(attribute.func.name)
        listed.extend(function.name for function in attribute.list.func)
    return single + listed
