"""The text of a function's forward and backward program, side by side in a terminal.

Values have letters, and short constants are written where they are read. A value that the forward
program gives to the backward program has the same letter in both.

Source: the notebook "Gradient checkpointing with jax.checkpoint", ``print_fwd_bwd``.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ...op_names import RECOMPUTE, parse_op_name
from ..graph.annotations import is_identity
from ..graph.dataflow import port_refs, tensor_refs
from ..graph.op_sets import SHAPES, SOURCES, VIEWS
from ..graph.source_location import static_shape, type_text
from ..partition.partition import Partition
from ..partition.program import GraphProgram
from .analysis import Analysis, analyze


@dataclass(frozen=True)
class Value:
    """A value of a program's text: its letter, its type, and for an input what it is."""

    letter: str
    type: str
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.letter}: {self.type}" + (f"  # {self.origin}" if self.origin else "")


@dataclass(frozen=True)
class Equation:
    """``results = operation(operands)``; ``replayed`` if it repeats a forward operation."""

    results: tuple[Value, ...]
    operation: str
    operands: tuple[str, ...]
    replayed: bool

    def __str__(self) -> str:
        left = ", ".join(f"{value.letter}: {value.type}" for value in self.results)
        return f"{left or '_'} = {self.operation} {' '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class ProgramText:
    """A program as text: inputs, equations in running order, letters of the outputs."""

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        lines = list(map("in   {}".format, self.inputs))
        lines += map("     {}".format, self.equations)
        return "\n".join([*lines, f"out  {' '.join(self.outputs)}"])


@dataclass(frozen=True)
class ForwardBackward:
    """The two programs of a function."""

    forward: ProgramText
    backward: ProgramText


def forward_backward(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> ForwardBackward:
    """Return the forward and the backward program of ``fn``, traced but not run.

    The forward program returns the results of ``fn``, then the saved values. The backward program
    takes the inputs that it reads, the saved values and the gradients of the results. It returns
    the gradients of the inputs that have one.

    Args:
        fn: A checkpointed function, or any other; the arguments that follow are its own.

    Returns:
        ``forward`` and ``backward``, each with ``inputs``, ``equations`` and ``outputs``.

    Raises:
        InvalidArgumentError: Nothing has a gradient.

    Examples:
        >>> programs = kr.forward_backward(kr.checkpoint(lambda x: tf.sin(tf.sin(x))), tf.ones(4))
        >>> [equation.operation for equation in programs.backward.equations if equation.replayed]
        ['Sin']
    """
    found = analyze(fn, args, kwargs)
    letters = _Letters()
    return ForwardBackward(
        _listing(found, found.part.forward, letters), _listing(found, found.part.backward, letters)
    )


def replay_count(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Return how many forward operations the backward pass of ``fn`` repeats.

    Operations of functions that are called inside count too, and a loop counts as one. Constants,
    shapes, reads of variables, and operations that pass values on or reshape them do not count.

    Args:
        fn: A checkpointed function, or any other; the arguments that follow are its own. It is
            traced, not run.

    Raises:
        InvalidArgumentError: Nothing has a gradient.

    Examples:
        >>> def network(x):
        ...     return tf.sin(tf.sin(tf.sin(x)))
        >>> kr.replay_count(kr.checkpoint(network), tf.ones(4))
        2
        >>> kr.replay_count(network, tf.ones(4))
        0
    """
    part = analyze(fn, args, kwargs).part
    return sum(_is_replayed(op, part) and not _is_free(op) for op in part.backward.operations)


def print_forward_backward(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print the programs of ``forward_backward`` side by side, with what is replayed in colour.

    Examples:
        >>> kr.print_forward_backward(kr.checkpoint(lambda x: tf.sin(tf.sin(x))), tf.ones(4))
        forward computation:              backward computation:
        in   a: float32[4]  # argument x  in   a: float32[4]  # argument x
             b: float32[4] = Sin a        in   d: float32[4]  # gradient of a result
             c: float32[4] = Sin b             e: float32[4] = Cos a
        out  c                                 b: float32[4] = Sin a
                                               f: float32[4] = Cos b
                                               g: float32[4] = Mul d f
                                               h: float32[4] = Mul g e
                                          out  h
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    programs = forward_backward(fn, *args, **kwargs)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="bold green")
    table.add_column("forward computation:")
    table.add_column("backward computation:")
    cells = []
    for program in (programs.forward, programs.backward):
        replayed = {f"     {equation}" for equation in program.equations if equation.replayed}
        lines = [
            Text(line, style="yellow" if line in replayed else "")
            for line in str(program).splitlines()
        ]
        cells.append(Text("\n").join(lines))
    table.add_row(*cells)
    Console().print(table)


class _Letters:
    """Gives letters to tensors in the order of their use: a, b, ..., z, ba, bb, ..."""

    def __init__(self) -> None:
        self._of: dict[Any, str] = {}
        self._count = 0

    def __call__(self, tensor: tf.Tensor) -> str:
        if tensor.ref() not in self._of:
            number, text = self._count, ""
            self._count += 1
            while number or not text:
                number, digit = divmod(number, 26)
                text = string.ascii_lowercase[digit] + text
            self._of[tensor.ref()] = text
        return self._of[tensor.ref()]

    def constant(self, tensor: tf.Tensor) -> None:
        """Write ``tensor`` as its value where that is short."""
        value = tf.get_static_value(tensor)
        short = value is not None and value.size <= 4
        self._of[tensor.ref()] = (
            str(value.tolist()).replace(" ", "") if short else f"<constant {tensor.name}>"
        )

    def same(self, tensor: tf.Tensor, other: tf.Tensor) -> None:
        """Give ``tensor`` the letter of ``other``."""
        self._of[tensor.ref()] = self(other)


def _listing(found: Analysis, program: GraphProgram, letters: _Letters) -> ProgramText:
    read = port_refs(map(program.inputs_of, program.operations)) | tensor_refs(program.outputs)
    inputs = []
    for number, port in enumerate(program.ports):
        for tensor in port[1:]:
            letters.same(tensor, port[0])
        if not read.isdisjoint(tensor_refs(port)):
            inputs.append(_value(port[0], letters, _kind_of_port(found, number)))
    for handle, _ in program.handles:
        if handle.ref() in read:
            inputs.append(_value(handle, letters, "handle"))
    equations = []
    for operation in program.operations:
        operands = program.inputs_of(operation)
        if operation.type == "Const":
            letters.constant(operation.outputs[0])
            continue
        if is_identity(operation):
            for source, result in zip(operands, operation.outputs):
                letters.same(result, source)
            continue
        results = tuple(_value(t, letters) for t in operation.outputs)
        is_replayed = program is found.part.backward and _is_replayed(operation, found.part)
        named = tuple(map(letters, operands))
        equations.append(Equation(results, operation.type, named, is_replayed))
    return ProgramText(tuple(inputs), tuple(equations), tuple(map(letters, program.outputs)))


def _value(tensor: tf.Tensor, letters: _Letters, origin: str = "") -> Value:
    return Value(letters(tensor), type_text(tensor.dtype.name, static_shape(tensor)), origin)


def _kind_of_port(found: Analysis, port: int) -> str:
    trace = found.part.joint.trace
    if port < len(trace.ports):
        return f"{found.port_kinds[port]} {found.port_names[port]}".rstrip()
    return "saved" if port < len(trace.ports) + len(found.part.saved) else "gradient of a result"


def _is_replayed(operation: tf.Operation, part: Partition) -> bool:
    return operation not in part.joint.backward or parse_op_name(operation.name)[0] == RECOMPUTE


def _is_free(operation: tf.Operation) -> bool:
    return is_identity(operation) or operation.type in (*SHAPES, *VIEWS, *SOURCES)
