"""The residuals of a function: values that stay in memory between forward and backward pass.

``saved_residuals`` returns a row for each value that is kept; ``residuals`` also has rows for
values that are recomputed instead. An argument or variable has a row if the backward pass reads it:
it costs nothing that the caller does not hold anyway.

Source: ``jax.ad_checkpoint.print_saved_residuals``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...user_code import Source
from ..frontend.diagnostics import advise_placement
from ..graph.annotations import aliases, annotated_name
from ..graph.dataflow import tensor_refs
from ..graph.source_location import source_of, static_shape
from ..policies import Decision, save_everything
from .analysis import Analysis, analyze
from .records import Residual


def residuals(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Residual, ...]:
    """Return a row for each value that the gradient of ``fn`` reads.

    Inputs come first, then results in running order. ``fn`` is traced for these arguments, not run.
    Raises InvalidArgumentError if nothing has a gradient.
    """
    found = analyze(fn, args, kwargs)
    advise_placement(found.part, found.name)
    plain = found.part.under(save_everything)
    decisions = dict.fromkeys(map(_Ref, plain.saved), Decision.RECOMPUTE)
    for number, value in enumerate(found.part.saved):
        decisions[_Ref(value)] = (
            Decision.OFFLOAD if number in found.part.offloaded else Decision.SAVE
        )
    order = {op: n for n, op in enumerate(found.part.joint.trace.graph.get_operations())}
    values = sorted(decisions, key=lambda ref: (order[ref.tensor.op], ref.tensor.value_index))
    return (*_inputs(found), *(_row_of_value(ref.tensor, decisions[ref]) for ref in values))


def saved_residuals(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Residual, ...]:
    """Return the rows of ``residuals`` that are kept, on the device or the host.

    Args:
        fn: A checkpointed function, or any other. It is traced for the arguments that follow,
            not run.

    Returns:
        A ``Residual`` for each value, with ``dtype``, ``shape``, ``bytes``, ``kind``, ``origin``,
        ``source`` and ``decision``: inputs first, then results in running order.

    Raises:
        InvalidArgumentError: Nothing has a gradient.

    Examples:
        >>> rows = kr.saved_residuals(lambda x: tf.sin(tf.sin(x)), tf.ones((8, 64)))
        >>> [(row.kind, row.origin, row.shape, row.bytes) for row in rows]
        [('argument', 'x', (8, 64), 2048), ('operation', 'Sin', (8, 64), 2048)]
    """
    return tuple(
        row for row in residuals(fn, *args, **kwargs) if row.decision is not Decision.RECOMPUTE
    )


def print_saved_residuals(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print a line for each row of ``saved_residuals``, with its arguments and exceptions.

    Examples:
        >>> kr.print_saved_residuals(lambda x: tf.sin(tf.sin(x)), tf.ones((8, 64)))
        float32[8,64] from the argument x
        float32[8,64] output of Sin from ...
    """
    for row in saved_residuals(fn, *args, **kwargs):
        print(row)


class _Ref:
    """A tensor as a key that leads back to it."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ref) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


def _inputs(found: Analysis) -> list[Residual]:
    trace = found.part.joint.trace
    read = found.part.read_by_backward
    rows = []
    for number, (port, name, kind) in enumerate(
        zip(trace.ports, found.port_names, found.port_kinds)
    ):
        # Read itself where a variable is read inside a loop.
        handle = trace.differentiable[number]
        if not read.isdisjoint(tensor_refs((*port, handle))):
            variable = (
                trace.variables[number - found.port_kinds.index("variable")]
                if kind == "variable"
                else None
            )
            rows.append(
                _row(variable if variable is not None else handle, kind, name, None, Decision.SAVE)
            )
    return rows


def _row_of_value(value: tf.Tensor, decision: Decision) -> Residual:
    named = [(annotated_name(t), t) for t in aliases(value) if annotated_name(t) is not None]
    if named:
        name, mark = named[0]
        return _row(value, "name", str(name), source_of(mark.op), decision)
    return _row(value, "operation", value.op.type, source_of(value.op), decision)


def _row(value: Any, kind: str, origin: str, source: Source | None, decision: Decision) -> Residual:
    shape = static_shape(value)
    count = None if shape is None or None in shape else value.shape.num_elements()
    # A list of tensors, as a loop stacks, has a size that only the running program knows.
    size = None if count is None or value.dtype == tf.variant else count * value.dtype.size
    return Residual(value.dtype.name, shape, size, kind, origin, source, decision)
