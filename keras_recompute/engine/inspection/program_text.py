"""The text of a function's forward and backward program, side by side in a terminal.

Values have letters, and short constants are written where they are read. A value that the forward
program gives to the backward program has the same letter in both.

Source: the notebook "Gradient checkpointing with jax.checkpoint", ``print_fwd_bwd``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...op_names import RECOMPUTE, parse_op_name
from ..graph.annotations import is_identity
from ..graph.dataflow import port_refs, tensor_refs
from ..graph.op_sets import SHAPES, SOURCES, VIEWS
from ..graph.source_location import static_shape
from ..partition.partition import Partition
from ..partition.program import GraphProgram
from .analysis import Analysis, analyze
from .records import (
    Equation,
    ForwardBackward,
    Letters,
    ProgramText,
    Value,
    constant_text,
    type_text,
)


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
    letters = Letters(lambda tensor: tensor.ref())
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
    forward_backward(fn, *args, **kwargs).print()


def _listing(found: Analysis, program: GraphProgram, letters: Letters) -> ProgramText:
    read = port_refs(map(program.inputs_of, program.operations)) | tensor_refs(program.outputs)
    inputs = []
    for number, port in enumerate(program.ports):
        for tensor in port[1:]:
            letters.write_as(tensor, letters(port[0]))
        if not read.isdisjoint(tensor_refs(port)):
            inputs.append(_value(port[0], letters, _kind_of_port(found, number)))
    for handle, _ in program.handles:
        if handle.ref() in read:
            inputs.append(_value(handle, letters, "handle"))
    equations = []
    for operation in program.operations:
        operands = program.inputs_of(operation)
        if operation.type == "Const":
            made = operation.outputs[0]
            letters.write_as(made, constant_text(tf.get_static_value(made), made.name))
            continue
        if is_identity(operation):
            for source, result in zip(operands, operation.outputs):
                letters.write_as(result, letters(source))
            continue
        results = tuple(_value(t, letters) for t in operation.outputs)
        is_replayed = program is found.part.backward and _is_replayed(operation, found.part)
        named = tuple(map(letters, operands))
        equations.append(Equation(results, operation.type, named, is_replayed))
    return ProgramText(tuple(inputs), tuple(equations), tuple(map(letters, program.outputs)))


def _value(tensor: tf.Tensor, letters: Letters, origin: str = "") -> Value:
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
