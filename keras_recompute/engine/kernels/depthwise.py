"""Convolutions of as many groups as features, by TensorFlow's depthwise kernels.

For TensorFlow without XLA, on a CPU. There it has no kernels for gradients of grouped convolutions,
so Keras writes these into functions of their own that XLA compiles. If each feature has its own
group, XLA:CPU is slow with them (see ``convolutions``): 14 to 150 times as slow as the equal
depthwise convolution. Such functions are replaced by that, with the kernel in another shape.
Convolutions with larger groups stay.

What it gains: benchmarks/notes/convolutions.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from ...seams.tensorflow.functions import inline_jit_calls
from .conv_windows import DEPTHWISE, is_channels_first, kernel_shape, window_of

# What stands beside the convolution in such a function. Others may be there to be compiled.
_BESIDE = frozenset(
    (
        "Cast",
        "Const",
        "ExpandDims",
        "Identity",
        "NoOp",
        "Placeholder",
        "ReadVariableOp",
        "Reshape",
        "Squeeze",
    )
)


def rewrite_as_depthwise() -> AbstractContextManager[None]:
    """Return the context in which a function is traced with depthwise convolutions instead."""
    return inline_jit_calls(_rewritten)


def _rewritten(graph: Any) -> dict[str, Callable[[Any], list[Any]]] | None:
    """Return what writes each convolution of ``graph``.

    None if it has no convolution, or another operation that is to be compiled.
    """
    operations = [
        operation for operation in graph.get_operations() if operation.type not in _BESIDE
    ]
    if not operations or not all(map(_is_depthwise, operations)):
        return None
    return {
        operation.name: functools.partial(_nodes, _kernel(operation)) for operation in operations
    }


def _is_depthwise(operation: tf.Operation) -> bool:
    if operation.type != "Conv2D" or is_channels_first(operation):
        return False
    window = window_of(operation)
    if window is None or window.groups == 1 or kernel_shape(operation)[-2] != 1:
        return False
    is_padded_by_hand = operation.get_attr("padding") == b"EXPLICIT"
    return set(window.dilations) == {1} and len(set(window.strides)) == 1 and not is_padded_by_hand


def _kernel(operation: tf.Operation) -> list[int]:
    """Return the shape of the kernel of the equal depthwise convolution."""
    *space, _, results = kernel_shape(operation)
    groups = operation.inputs[0].shape[-1]
    return [*space, groups, results // groups]


def _nodes(kernel: list[int], convolution: Any) -> list[Any]:
    image, given = convolution.input[:2]
    sizes = tf.compat.v1.NodeDef(name=f"{convolution.name}/sizes", op="Const")
    sizes.attr["dtype"].type = tf.int32.as_datatype_enum
    sizes.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(kernel, tf.int32))
    reshaped = tf.compat.v1.NodeDef(
        name=f"{convolution.name}/kernel", op="Reshape", input=[given, sizes.name]
    )
    reshaped.attr["T"].CopyFrom(convolution.attr["T"])
    reshaped.attr["Tshape"].type = tf.int32.as_datatype_enum
    convolved = tf.compat.v1.NodeDef(
        name=convolution.name, op=DEPTHWISE, input=[image, reshaped.name]
    )
    for attribute in ("T", "strides", "padding", "data_format", "dilations"):
        convolved.attr[attribute].CopyFrom(convolution.attr[attribute])
    return [sizes, reshaped, convolved]
