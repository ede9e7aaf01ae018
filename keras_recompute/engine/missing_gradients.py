"""Operations without a gradient, such as those that augment images: what lies behind them can be differentiated all the same.

TensorFlow asks for the gradient of an operation only if it leads to something whose gradient is wanted. The engine
differentiates for all inputs of a function at once. So where an operation has no gradient, back-propagation stops at it, and
the inputs in front of it are *refused*: they go through an operation whose gradient raises TensorFlow's error, which is asked
for only where a gradient of such an input is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..graph_traversal import reachable
from ..seams.tensorflow.functions import find_function
from ..seams.tensorflow.gradients import gradient_is_registered, has_gradient, is_recorded
from ..seams.tensorflow.operations import GRADIENT
from ..seams.tensorflow.tensors import is_eager
from .custom_vjp import Gradients, custom_vjp
from .variables_by_value import CALLING, called_by


def operations_without_gradient(operations: Iterable[tf.Operation], *, inside: bool) -> list[tf.Operation]:
    """Return those of ``operations`` that have no gradient; if ``inside``, those too that call a function with such a one."""
    return [
        op
        for op in operations
        if any(t.dtype.is_floating or t.dtype.is_complex for t in op.outputs)
        and (
            (not gradient_is_registered(op.type) and op.type not in CALLING and not has_gradient(op))
            or (inside and _calls_one(op.node_def, op.graph, set()))
        )
    ]


def _calls_one(node: Any, graph: Any, seen: set[str]) -> bool:
    for name in set(called_by(node)) - seen:
        seen.add(name)
        nodes = find_function(graph, name).definition.node_def
        for inner in nodes:
            kind = inner.attr[GRADIENT].s.decode() if GRADIENT in inner.attr else inner.op
            if inner.op in CALLING:
                if _calls_one(inner, graph, seen):
                    return True
            elif inner.input and not gradient_is_registered(kind):
                return True
    return False


def upstream_ports(blocking: Iterable[tf.Operation], tensors: Sequence[tf.Tensor]) -> tuple[int, ...]:
    """Return the numbers of those of ``tensors`` that the operations ``blocking`` are made from."""
    needed = {t.ref() for op in reachable(blocking, lambda op: (t.op for t in op.inputs)) for t in op.inputs}
    return tuple(number for number, tensor in enumerate(tensors) if tensor.ref() in needed)


def raising_gradient(values: Sequence[tf.Tensor], reasons: Mapping[int, str]) -> list[tf.Tensor]:
    """Return ``values``; the gradient of one whose number is in ``reasons`` raises LookupError with the reason."""
    return [
        _raising(value, reasons[number]) if number in reasons and _may_be_asked(value) else value
        for number, value in enumerate(values)
    ]


def _may_be_asked(value: tf.Tensor) -> bool:
    """Whether ``value`` is made from anything but constants without passing a ``tf.stop_gradient``."""
    if is_eager(value):
        return is_recorded(value)
    makers = reachable([value.op], lambda op: () if op.type == "StopGradient" else (t.op for t in op.inputs))
    return any(operation.type in ("Placeholder", "ReadVariableOp") for operation in makers)


def _raising(value: tf.Tensor, reason: str) -> tf.Tensor:
    def gradient(_: tf.Tensor) -> list[tf.Tensor | None]:
        raise LookupError(reason)

    return custom_vjp(lambda: [tf.identity(value)], gradient, inputs=[value], name="no_gradient")[0]


def with_zero_gradients(gradients: Gradients, values: Sequence[tf.Tensor], reasons: Mapping[int, str]) -> Gradients:
    """Return ``gradients``, with zeros in place of those that have ``reasons``, so that the error is asked for."""
    return [tf.zeros_like(values[number]) if number in reasons else g for number, g in enumerate(gradients)]
