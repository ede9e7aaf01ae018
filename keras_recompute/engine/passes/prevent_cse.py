"""Prevention of common-subexpression elimination between matmul operands and slopes.

For XLA. XLA shares ``erfc(x)`` between gelu's output and gelu's derivative. That keeps an extra
array alive, from the first use to the second, beside the array of the output. It takes less memory
to compute ``erfc`` again where it is read. So the operand of a product is computed from an opaque
copy of x. The two stay separate, and each is fused where it is used.

What it gains: benchmarks/notes/residuals.md.
"""

from __future__ import annotations

import functools
from collections.abc import Set
from typing import Any

import tensorflow as tf

from ...graph_traversal import reachable
from ..capture.joint_graph import JointGraph
from ..graph.annotations import alias_chain, is_identity
from ..graph.dataflow import kinds, port_refs, tensor_refs
from ..graph.op_sets import CHEAP, ELEMENTWISE, PRODUCTS, SHAPES
from ..partition.program import GraphProgram, program_between
from ..partition.program_slice import inputs_of, operations_between
from ..partition.stages import Barrier, Stage

_NO_ARITHMETIC = PRODUCTS.union(SHAPES)


def duplicate_matmul_operands(program: GraphProgram, joint: JointGraph) -> tuple[Stage, ...]:
    """Return ``program``, with operands of products made separately if that spares an array."""
    chains = _ElementwiseReads(program, joint.backward)
    operands = list(filter(chains.shares_a_function, chains.operands()))
    if not operands:
        return (Stage(program),)
    operations = operations_between(
        operands, program.ports, program.handles, replays=program.replays
    )
    read = port_refs(inputs_of(op, program.replays) for op in operations)
    read_ports = [port for port in program.ports if not read.isdisjoint(tensor_refs(port))]
    between = functools.partial(program_between, program, replays=program.replays)
    made = between(read_ports, operands)
    rest = between((*program.ports, *zip(operands)), program.outputs)
    return Stage(made, Barrier.COPIED_INPUTS), Stage(rest)


class _ElementwiseReads:
    """What a program makes by elementwise arithmetic from its ports, and what reads it."""

    def __init__(self, program: GraphProgram, backward: Set[tf.Operation]) -> None:
        self._backward = backward
        self._replays = program.replays
        self._readers: dict[Any, list[tf.Operation]] = {}
        given = port_refs(program.ports)
        self._made: set[Any] = set()
        # Ports that what is made by arithmetic follows from, gradients included.
        self._origins: dict[Any, frozenset[Any]] = {port: frozenset([port]) for port in given}
        self._functions_of_slopes: set[tuple[str, frozenset[Any]]] = set()
        for operation in program.operations:
            inputs = inputs_of(operation, program.replays)
            for tensor in inputs:
                self._readers.setdefault(tensor.ref(), []).append(operation)
            self._enter(operation, [t.ref() for t in inputs if t.op.type != "Const"])

    def _enter(self, operation: tf.Operation, inputs: list[Any]) -> None:
        is_arithmetic = operation.type in CHEAP | ELEMENTWISE or is_identity(operation)
        if not is_arithmetic or not self._origins.keys() >= set(inputs):
            return
        origins = frozenset[Any]().union(*map(self._origins.__getitem__, inputs))
        made = tensor_refs(operation.outputs)
        self._origins.update(dict.fromkeys(made, origins))
        if operation not in self._backward:
            self._made.update(made)
        elif operation.type in ELEMENTWISE:
            self._functions_of_slopes.add((operation.type, origins))

    def operands(self) -> list[tf.Tensor]:
        """Return what is made for products, once each."""
        found = []
        for reference, readers in self._readers.items():
            if reference in self._made and not kinds(readers).isdisjoint(PRODUCTS):
                found.append(reference.deref())
        return found

    def shares_a_function(self, operand: tf.Tensor) -> bool:
        """Whether ``operand`` contains a function that is also read on its own.

        The operand itself is not read that way.
        """
        if any(map(self._is_read_by_arithmetic, alias_chain(operand))):
            return False
        contained = reachable([operand.ref()], self._made_from)
        for tensor in (reference.deref() for reference in contained):
            if tensor.op.type not in ELEMENTWISE:
                continue
            if self._is_made_by_a_slope(tensor) or self._is_read_by_arithmetic(tensor):
                return True
        return False

    def _is_made_by_a_slope(self, function: tf.Tensor) -> bool:
        """Whether a gradient makes such a function of the same ports, as that of a silu does.

        A compiler merges the two if they are equal. If they only look so, an operand is duplicated
        for nothing, and no value changes.
        """
        return (function.op.type, self._origins[function.ref()]) in self._functions_of_slopes

    def _made_from(self, reference: Any) -> list[Any]:
        inputs = inputs_of(reference.deref().op, self._replays)
        return list(self._made.intersection(tensor_refs(inputs)))

    def _is_read_by_arithmetic(self, tensor: tf.Tensor) -> bool:
        readers = self._readers.get(tensor.ref(), ())
        # The gradient of a convolution asks for the shape of its operand, and reads no element so.
        return any(op in self._backward and op.type not in _NO_ARITHMETIC for op in readers)
