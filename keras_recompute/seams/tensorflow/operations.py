"""Operations of a graph under construction, and the attributes of their NodeDefs."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import handle_data_util

# Attributes of a NodeDef: colocated operations, the gradient registered for this operation,
# inferred output shapes, and which resource handles its function only reads.
COLOCATION = "_class"
GRADIENT = "_gradient_op_type"
SHAPES = "_output_shapes"
ONLY_READ = "_read_only_resource_inputs"


def is_stateful(operation: tf.Operation) -> bool:
    """Whether ``operation`` is of a type that TensorFlow marks as stateful."""
    return bool(operation._is_stateful)


def type_is_stateful(name: str) -> bool:
    """Whether operations of the type ``name`` are stateful to TensorFlow; unknown types are."""
    definition = op_def_registry.get(name)
    return definition is None or definition.is_stateful


def number_in_graph(operation: tf.Operation) -> int:
    """Return a number that is greater than those of all operations made earlier in its graph."""
    return int(operation._id)


def replace_input(operation: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Make ``operation`` read ``tensor`` as its input number ``index``."""
    operation._update_input(index, tensor)


def redirect_readers(
    tensor: tf.Tensor, *, instead_of: tf.Tensor, readers: Iterable[tf.Operation]
) -> None:
    """Make ``readers`` read ``tensor`` wherever they read ``instead_of``."""
    for reader in readers:
        for index, read in enumerate(reader.inputs):
            if read is instead_of:
                replace_input(reader, index, tensor)


def copy_element_types(source: tf.Tensor, target: tf.Tensor) -> None:
    """Copy the recorded types and shapes of a list's elements from ``source`` to ``target``."""
    handle_data_util.copy_handle_data(source, target)
