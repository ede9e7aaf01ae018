"""In the place of an operation, the operations that do the same: written once per kind and shape, copied as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..seams.tensorflow.functions import function_in
from .by_value import called_by

_RESULT = "result"


def spliced(operation: tf.Operation, make: Callable[..., tf.Tensor], inputs: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Return the nodes of ``make``, a function of the inputs of ``operation``, that is named and fed as the operation is.

    And the functions that they call.
    """
    with tf.Graph().as_default() as graph:
        given = [_stand_in(tensor, number) for number, tensor in enumerate(operation.inputs)]
        result = make(*given)
        result.set_shape(operation.outputs[0].shape)
        tf.identity(result, name=_RESULT)
        nodes = graph.as_graph_def().node
    fed = {tensor.op.name: name for tensor, name in zip(given, inputs)}
    found = []
    for node in nodes:
        if node.op == "Placeholder":
            continue
        renamed = [_renamed(name, operation.name, fed) for name in node.input]
        del node.input[:]
        node.input.extend(renamed)
        node.name = _renamed(node.name, operation.name, fed)
        found.append(node)
    return found, [function_in(graph, name) for name in {name for node in found for name in called_by(node)}]


def _stand_in(tensor: tf.Tensor, number: int) -> tf.Tensor:
    return tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name=f"input_{number}")


def _renamed(name: str, operation: str, fed: dict[str, str]) -> str:
    """Return what a node or input ``name`` is called in the place of ``operation``."""
    if name.startswith("^"):
        return f"^{_renamed(name[1:], operation, fed)}"
    if name in fed:
        return fed[name]
    return operation if name == _RESULT else f"{operation}/{name}"
