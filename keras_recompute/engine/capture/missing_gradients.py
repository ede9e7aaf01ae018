"""Operations without a gradient, such as operations that augment images.

What follows them can be differentiated all the same. TensorFlow asks for the gradient of an
operation only if it leads to something whose gradient is wanted. The engine differentiates for all
inputs of a function at once. So back-propagation stops at an operation without a gradient. The
inputs in front of it go through an operation whose gradient raises TensorFlow's error, which
happens only if the gradient of such an input is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ...graph_traversal import reachable
from ...seams.tensorflow.functions import find_function
from ...seams.tensorflow.gradients import gradient_is_registered, has_gradient, is_recorded
from ...seams.tensorflow.operations import GRADIENT
from ...seams.tensorflow.tensors import is_eager
from ..graph.dataflow import is_differentiable, port_refs, producers
from ..graph.variables_by_value import CALLING, called_by
from .custom_vjp import Gradients, custom_vjp


def operations_without_gradient(
    operations: Iterable[tf.Operation], *, inside: bool
) -> list[tf.Operation]:
    """Return the ``operations`` without a gradient.

    With ``inside``, also operations that call a function with such an operation.
    """

    def has_none(operation: tf.Operation) -> bool:
        if not any(map(is_differentiable, operation.outputs)):
            return False
        if inside and _calls_one(operation.node_def, operation.graph, set()):
            return True
        if operation.type in CALLING or gradient_is_registered(operation.type):
            return False
        return not has_gradient(operation)

    return list(filter(has_none, operations))


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


def upstream_ports(
    blocking: Iterable[tf.Operation], tensors: Sequence[tf.Tensor]
) -> tuple[int, ...]:
    """Return the numbers of the ``tensors`` that the operations ``blocking`` are made from."""
    needed = port_refs(op.inputs for op in reachable(blocking, producers))
    return tuple(number for number, tensor in enumerate(tensors) if tensor.ref() in needed)


def raising_gradient(values: Sequence[tf.Tensor], reasons: Mapping[int, str]) -> list[tf.Tensor]:
    """Return ``values``, where a value with a reason has a gradient that raises LookupError.

    ``reasons`` are texts by the numbers of values.
    """
    found = list(values)
    for number, reason in reasons.items():
        if _may_be_asked(values[number]):
            found[number] = _raising(values[number], reason)
    return found


def _may_be_asked(value: tf.Tensor) -> bool:
    """Whether ``value`` depends on more than constants, by a path without ``tf.stop_gradient``."""
    if is_eager(value):
        return is_recorded(value)

    def differentiable_producers(operation: tf.Operation) -> list[tf.Operation]:
        return [] if operation.type == "StopGradient" else producers(operation)

    makers = reachable([value.op], differentiable_producers)
    return any(operation.type in ("Placeholder", "ReadVariableOp") for operation in makers)


def _raising(value: tf.Tensor, reason: str) -> tf.Tensor:
    def gradient(_: tf.Tensor) -> list[tf.Tensor | None]:
        raise LookupError(reason)

    return custom_vjp(lambda: [tf.identity(value)], gradient, inputs=[value], name="no_gradient")[0]


def with_zero_gradients(
    gradients: Gradients, values: Sequence[tf.Tensor], reasons: Mapping[int, str]
) -> Gradients:
    """Return ``gradients``, with zeros for values that have ``reasons``.

    So TensorFlow goes on to the operation that raises the error.
    """
    found = list(gradients)
    for number in reasons:
        found[number] = tf.zeros_like(values[number])
    return found
