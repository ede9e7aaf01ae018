"""Programs: parts of a traced graph that can be written into another graph.

A program is data. It holds its inputs (ports and handles), its operations in an order in which they
can run, and its outputs. ``check`` proves that these fit together. ``write`` copies the operations
into the graph under construction.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from ...errors import InvalidProgramError, UnsupportedError
from ...op_names import COPIES
from ...seams.tensorflow.functions import add_function, find_function, register_by_name
from ...seams.tensorflow.operations import COLOCATION, GRADIENT, copy_element_types
from ...seams.tensorflow.vectorized_map import is_in_vectorized_body
from ..capture.original_control_flow import original_definitions, output_count
from ..capture.trace import Port
from ..graph.annotations import is_alternative
from ..graph.captures import in_default_graph
from ..graph.dataflow import makers, names_of
from ..graph.graph_state import kept_with
from ..graph.op_sets import HANDS_ON, known_elements
from ..graph.target import WITHOUT_PASSES, Target
from ..graph.variables_by_value import BRANCHES, CaptureByValue, called_by
from .op_rewrite import rewritten_nodes
from .program_slice import given_refs, inputs_of, operations_between
from .renames import NONE, Renames

# Elements of a constant that is compared with others.
_FEW = 64


@dataclass(frozen=True, eq=False)
class GraphProgram:
    """Operations of ``graph`` that compute ``outputs`` from one value per port and the handles.

    For a handle in a port, ``value_specs`` has the type and shape of the value that is given
    instead.

    ``replays`` holds the operations of ``annotations.replay_alternative`` and
    ``inference_alternative`` that take their alternative here; others of that kind take the plain
    value. ``original_definitions`` holds the definitions of loops and branches that are copied as
    they were before differentiation. ``renames`` renames the copies of the operations.
    """

    graph: Any
    ports: tuple[Port, ...]
    handles: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    operations: tuple[tf.Operation, ...]
    outputs: tuple[tf.Tensor, ...]
    replays: frozenset[tf.Operation] = frozenset()
    original_definitions: Mapping[tf.Operation, Any] = field(default_factory=dict)
    value_specs: Mapping[Any, tf.TensorSpec] = field(default_factory=dict)
    target: Target = WITHOUT_PASSES
    renames: Renames = NONE
    _definition: list[tuple[bytes, set[str]]] = field(default_factory=list, repr=False)
    _called: list[Any] = field(default_factory=list, repr=False)

    def check(self) -> GraphProgram:
        """Return the program itself, or raise InvalidProgramError naming what does not fit.

        Every value must be bound once and before its use, and every output must be bound.
        """
        bound = dict.fromkeys(given_refs(self.ports, self.handles), "an input")
        for operation in self.operations:
            for tensor in self.inputs_of(operation):
                if tensor.ref() not in bound:
                    raise InvalidProgramError(
                        f"operation {operation.name!r} reads {tensor.name!r} before an operation "
                        "or input has made it"
                    )
            for tensor in operation.outputs:
                # Where an output of an operation is given from outside, readers take the given
                # value.
                if bound.get(tensor.ref()) == operation.name:
                    raise InvalidProgramError(f"{tensor.name!r} is made twice")
                bound.setdefault(tensor.ref(), operation.name)
        for tensor in self.outputs:
            if tensor.ref() not in bound:
                raise InvalidProgramError(
                    f"no operation of the program makes its output {tensor.name!r}"
                )
        return self

    def write(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Copy the program into the default graph, fed by ``values``, and return its outputs.

        ``values`` has one value per port.
        """
        if len(values) != len(self.ports):
            raise InvalidProgramError(
                f"the program has {len(self.ports)} ports but was given {len(values)} values"
            )
        feeds = self._feeds(values)
        graph_def, read = self.definition()
        if is_in_vectorized_body(tf.compat.v1.get_default_graph()):
            _hand_on_without_branches(graph_def)
        made = set(self.operations)
        wanted = [t.name for t in self.outputs if t.name not in feeds and t.op in made]
        imported: list[tf.Tensor] = []
        # A program may only pass its ports on.
        if graph_def.node:
            imported = self._copy(graph_def, read, feeds, wanted)

        found = dict(zip(wanted, imported))
        results = []
        for tensor in self.outputs:
            if tensor.name in found:
                # Copying infers shapes again, and knows less about values from outside.
                found[tensor.name].set_shape(tensor.shape)
                results.append(found[tensor.name])
            else:
                results.append(in_default_graph(feeds[tensor.name]))
        return results

    def _feeds(self, values: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return what each tensor of the ports and each handle stands for, by its name.

        Raises InvalidProgramError for a value of another type or shape, and UnsupportedError where
        a variable's value stands for a handle that a branch returned.
        """
        feeds: dict[str, tf.Tensor] = {}
        for port, value in zip(self.ports, values):
            for tensor in port:
                expected = self.value_specs.get(tensor.ref(), tensor)
                fits = expected.shape.is_compatible_with(value.shape)
                if expected.dtype == tf.resource != value.dtype:
                    raise UnsupportedError(
                        f"{tensor.name!r} is a variable that a branch returns, which XLA cannot "
                        "compile: read the variable in the branch, and return its value"
                    )
                if expected.dtype != value.dtype or not fits:
                    raise InvalidProgramError(
                        f"{tensor.name!r} is {expected.dtype.name}{expected.shape} but was given "
                        f"{value.dtype.name}{value.shape}"
                    )
                feeds[tensor.name] = value
        for placeholder, external in self.handles:
            feeds[placeholder.name] = external
        return feeds

    def _copy(
        self,
        graph_def: Any,
        read: Set[str],
        feeds: Mapping[str, tf.Tensor],
        wanted: Sequence[str],
    ) -> list[tf.Tensor]:
        """Copy ``graph_def`` into the default graph; return the tensors called ``wanted``.

        It reads the tensors called ``read``, and ``feeds`` has some of them.
        """
        renames = self.renames.rename_nodes(graph_def, read)
        input_map = {}
        for name, value in feeds.items():
            if name in read:
                input_map[renames.of_tensor(name)] = in_default_graph(value)
        scope = _scope_for(map(renames, names_of(self.operations)))
        _remember_copies(scope, self.graph)
        graph = tf.compat.v1.get_default_graph()
        register_by_name(graph)
        for function in self._called:
            add_function(graph, function)
        copied = [op for op in self.operations if op.type != "Const"]
        tensors = list(map(renames.of_tensor, wanted))
        operations = list(map(renames, names_of(copied)))
        imported, copies = _import(graph_def, input_map, scope, tensors, operations)
        for operation, copy in zip(copied, copies):
            _complete(copy, operation, self.target)
        return imported

    def rebound_to(self, handles: Mapping[int, tf.Tensor], renames: Renames) -> GraphProgram:
        """Return the program with other handles, by the ids of its own, and with ``renames``."""
        given = []
        for placeholder, external in self.handles:
            given.append((placeholder, handles[id(external)]))
        return replace(self, handles=tuple(given), renames=renames)

    def definition(self) -> tuple[Any, set[str]]:
        """Return the operations as a GraphDef, and the names of all tensors that they read.

        Made once, on first use, and kept as bytes, which are a sixth of the object. The functions
        that the operations call are not in it. A graph that imports a library keeps everything that
        it was read from, and makes its own copy of functions that others have too.
        """
        if not self._definition:
            shared_constants = self._each_constant_once()
            copied = set(names_of(self.operations)).difference(shared_constants)
            graph_def = tf.compat.v1.GraphDef(versions=self.graph.graph_def_versions)
            read: set[str] = set()
            called: set[str] = set()
            capture = CaptureByValue(self.graph)
            for operation in self.operations:
                if operation.name in copied:
                    faster = self.target.first("operation", operation)
                    inputs = self._input_names(operation, shared_constants)
                    if faster:
                        nodes, functions = rewritten_nodes(operation, faster, inputs)
                        self._called.extend(functions)
                    else:
                        nodes = [self._node(operation, inputs, copied, capture)]
                        called.update(called_by(nodes[0]))
                    graph_def.node.extend(nodes)
                    # A rewrite need not read all that the operation reads.
                    named = set(inputs)
                    if faster:
                        named = set(itertools.chain(*(node.input for node in nodes)))
                    for tensor, name in zip(self.inputs_of(operation), inputs):
                        if name in named:
                            read.add(tensor.name)
            for name in called:
                self._called.append(capture.functions.get(name) or find_function(self.graph, name))
            self._definition.append((graph_def.SerializeToString(), read))
        serialized, read = self._definition[0]
        return tf.compat.v1.GraphDef.FromString(serialized), read

    def with_read_ports(self) -> tuple[GraphProgram, list[int]]:
        """Return the program without the ports that nothing reads, and the numbers of the rest."""
        _, names = self.definition()
        read = names.union(names_of(self.outputs))
        ports, numbers = [], []
        for number, port in enumerate(self.ports):
            if not read.isdisjoint(names_of(port)):
                ports.append(port)
                numbers.append(number)
        return replace(self, ports=tuple(ports)), numbers

    def inputs_of(self, operation: tf.Operation) -> list[tf.Tensor]:
        """Return what ``operation`` reads in this program."""
        return inputs_of(operation, self.replays, self.original_definitions)

    def _input_names(
        self, operation: tf.Operation, shared_constants: Mapping[str, str]
    ) -> list[str]:
        """Return the names of what ``operation`` reads, as nodes write them.

        The name of a first output is that of its operation.
        """
        names = []
        for tensor in self.inputs_of(operation):
            name = tensor.name if tensor.value_index else tensor.op.name
            names.append(shared_constants.get(name, name))
        return names

    def _node(
        self,
        operation: tf.Operation,
        inputs: Iterable[str],
        copied: Set[str],
        capture: CaptureByValue,
    ) -> Any:
        """Return the NodeDef of the copy of ``operation``."""
        node = deepcopy(self.original_definitions.get(operation)) or operation.node_def
        # Colocation and control edges to operations that stay behind would dangle. An import
        # expects control edges last, but what differentiation adds to a loop's inputs stands behind
        # them.
        control = [name for name in node.input if name.startswith("^") and name[1:] in copied]
        del node.input[:]
        node.input.extend([*inputs, *control])
        node.attr.pop(COLOCATION, None)
        # Copies are never differentiated themselves, and gradients written by users refer to the
        # original.
        node.attr.pop(GRADIENT, None)
        if node.op in BRANCHES:
            # Differentiating a branch notes the shapes of its first side, which another side need
            # not have.
            shapes = node.attr["output_shapes"].list
            del shapes.shape[:]
            shapes.shape.extend(t.shape.as_proto() for t in operation.outputs[: output_count(node)])
        if is_alternative(operation):
            del node.attr["T"].list.type[1:]
        values = {}
        for number, tensor in enumerate(self.inputs_of(operation)):
            if tensor.ref() in self.value_specs:
                values[number] = self.value_specs[tensor.ref()]
        if values:
            capture.rewrite(node, values)
        return node

    def _each_constant_once(self) -> dict[str, str]:
        """Return the names of duplicate constants, each with the name of the one that is kept.

        A traced function makes the sizes and axes that it gives to operations again for each: half
        of all its operations.
        """
        ends = set(makers(itertools.chain(self.outputs, *self.ports)))
        first: dict[bytes, str] = {}
        same: dict[str, str] = {}
        constants = [op for op in self.operations if op.type == "Const" and op not in ends]
        for operation in constants:
            if known_elements(operation.outputs[0]) <= _FEW:
                node = operation.node_def
                node.name = ""
                node.attr.pop(COLOCATION, None)
                kept = first.setdefault(node.SerializeToString(deterministic=True), operation.name)
                if kept != operation.name:
                    same[operation.name] = kept
        return same


def _import(
    graph_def: Any,
    input_map: Mapping[str, tf.Tensor],
    scope: str,
    tensors: Sequence[str],
    operations: Sequence[str],
) -> tuple[list[tf.Tensor], list[tf.Operation]]:
    """Copy ``graph_def`` into the default graph; return copies of ``tensors`` and operations."""
    elements = [*tensors, *operations]
    found = tf.graph_util.import_graph_def(
        graph_def, input_map, elements, name=f"{scope}/" if scope else ""
    )
    return found[: len(tensors)], found[len(tensors) :]


def _hand_on_without_branches(graph_def: Any) -> None:
    """Call the usual branch in place of branches that hand on what they are given.

    ``fence.materialize`` writes such branches. A vectorized map takes a branch for some of its
    elements, by sizes that XLA does not know.
    """
    for node in graph_def.node:
        if node.op == "StatelessIf" and node.name.rpartition("/")[2].startswith(HANDS_ON):
            usual = deepcopy(node.attr["else_branch"])
            node.op = "PartitionedCall"
            del node.input[0]
            for name in set(node.attr) - {"Tin", "Tout"}:
                del node.attr[name]
            node.attr["f"].CopyFrom(usual)


def _complete(copy: tf.Operation, original: tf.Operation, target: Target) -> None:
    """Give ``copy`` what TensorFlow keeps beside operations and does not copy with them.

    That is the types of the elements of lists, which vectorized maps (``tf.vectorized_map``,
    ``batch_jacobian``) ask for, and what the passes of the target add.
    """
    for complete in target.at("copied"):
        complete(original, copy)
    for made, tensor in zip(copy.outputs, original.outputs):
        if tensor.dtype == tf.variant:
            copy_element_types(tensor, made)


def _scope_for(names: Iterable[str]) -> str:
    """Return the current name scope if ``names`` are all free in it, else a new one inside.

    TensorFlow renames copies where names are taken, but may then give one name to two operations.
    """
    graph = tf.compat.v1.get_default_graph()
    scope = graph.get_name_scope()
    for name in names:
        if graph.unique_name(name, mark_as_used=False) != (f"{scope}/{name}" if scope else name):
            return graph.unique_name("body")
    return scope


def _remember_copies(scope: str, original: Any) -> None:
    """Note in the graph under construction that ``scope`` holds copies from ``original``."""
    if scope:
        kept_with(tf.compat.v1.get_default_graph(), COPIES)[f"{scope}/"] = original


def program_between(
    source: Any,
    ports: Sequence[Port],
    outputs: Sequence[tf.Tensor],
    *,
    always: Iterable[tf.Operation] = (),
    replays: frozenset[tf.Operation] = frozenset(),
) -> GraphProgram:
    """Return the checked program that computes ``outputs`` from ``ports``.

    ``source``, a trace or a program, has the graph. Operations in ``always`` are included, and
    ``replays`` take their alternative.
    """
    leading = functools.partial(
        operations_between, outputs, ports, source.handles, always=always, replays=replays
    )
    operations = leading()
    earlier = original_definitions(source.graph, operations, outputs)
    return GraphProgram(
        graph=source.graph,
        ports=tuple(ports),
        handles=source.handles,
        operations=leading(original_definitions=earlier) if earlier else operations,
        outputs=tuple(outputs),
        replays=replays,
        original_definitions=earlier,
        value_specs=source.value_specs,
        target=source.target,
    ).check()
