"""Sparse gradients: of a tensor whose rows are gathered, as an embedding gathers from its table.

TensorFlow represents them as ``tf.IndexedSlices``: values, and the rows that they belong to. A row
that was gathered twice is there twice, and Keras's optimizers treat that otherwise than the sum. So
a gradient that is sparse in the plain program is sparse here. Programs exchange plain tensors: the
values are results of the backward program. The rows, whole numbers that no gradient changes, are
computed by a program of their own.

Behind a branch gradients are dense, and their tensors are noted. The sides of a branch may
gather different numbers of rows, and so contribute different numbers of slices. TensorFlow's graph
optimizer takes the shape of the first side for both. The derivative of a sum of slices then fails,
since it asks for shapes, and TensorFlow makes such sums wherever it adds gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Union

import tensorflow as tf

from ...graph_traversal import reachable
from ...seams.tensorflow.gradients import registered_gradient, set_gradient
from .dataflow import map_present
from .op_sets import VIEWS
from .variables_by_value import BRANCHES

Gradient = Union[tf.Tensor, tf.IndexedSlices]

_GATHERS = ("Gather", "GatherNd", "GatherV2", "ResourceGather", "ResourceGatherNd")
_HANDING_ON = (*VIEWS, "Cast", "Identity", "StridedSlice")
_OF_A_BRANCH = "keras_recompute.DenseGradientOfBranch"
_made_dense: ContextVar[set[Any]] = ContextVar("made_dense")


def densify(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Return ``gradient`` as one tensor.

    An unknown number of slices is added by a scatter, whose derivative asks for no shape.
    """
    if isinstance(gradient, tf.IndexedSlices) and gradient.dense_shape is not None:
        rows, shape = gradient.indices, gradient.dense_shape
        if rows.shape.rank == 1 and rows.shape[0] is None:
            return tf.scatter_nd(
                tf.expand_dims(rows, 1), gradient.values, tf.cast(shape, rows.dtype)
            )
    return tf.convert_to_tensor(gradient)


def sparse_or_dense(gradient: Gradient) -> Gradient:
    """Return ``gradient`` as slices of one list of rows, else as one tensor."""
    if isinstance(gradient, tf.IndexedSlices) and gradient.indices.shape.rank == 1:
        return gradient
    return densify(gradient)


def values_of(gradient: Gradient) -> tf.Tensor:
    """Return the tensor that carries the derivative: the values of a sparse gradient."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def slices(values: tf.Tensor, rows: tf.Tensor, like: tf.Tensor) -> tf.IndexedSlices:
    """Return the sparse gradient of a tensor with the shape of ``like``."""
    is_known = like.shape.is_fully_defined()
    shape = tf.constant(like.shape.as_list(), tf.int32) if is_known else tf.shape(like)
    return tf.IndexedSlices(values, rows, tf.cast(shape, rows.dtype))


def zero_values(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return zeros in place of ``values``, whose shape a graph knows; ``rows`` are here."""
    if values.shape.is_fully_defined():
        return tf.zeros(values.shape, values.dtype)
    return tf.zeros([tf.size(rows), *values.shape[1:]], values.dtype)


def is_gathered(tensor: tf.Tensor) -> bool:
    """Whether rows of ``tensor`` are gathered, which makes its plain gradient sparse."""
    found = [reference.deref() for reference in reachable([tensor.ref()], _handed_on)]
    return any(op.type in _GATHERS and op.inputs[0] is t for t in found for op in t.consumers())


def is_handed_on_to(tensors: Collection[Any], tensor: tf.Tensor) -> bool:
    """Whether a cast or a view of ``tensor`` is among the references ``tensors``."""
    return not reachable([tensor.ref()], _handed_on).keys().isdisjoint(tensors)


def _handed_on(value: Any) -> list[Any]:
    readers = [op for op in value.deref().consumers() if op.type in _HANDING_ON]
    return [op.outputs[0].ref() for op in readers]


@contextlib.contextmanager
def dense_behind_branches(operations: Iterable[tf.Operation]) -> Iterator[set[Any]]:
    """Differentiate the branches among ``operations`` to plain tensors inside.

    Gives references to the inputs of branches whose gradients would have been sparse.
    """
    branches = [operation for operation in operations if operation.type in BRANCHES]
    for branch in branches:
        set_gradient(branch, _OF_A_BRANCH)
    made_dense: set[Any] = set()
    token = _made_dense.set(made_dense)
    try:
        yield made_dense
    finally:
        _made_dense.reset(token)
        for branch in branches:
            set_gradient(branch, None)


@tf.RegisterGradient(_OF_A_BRANCH)
def _gradient_of_a_branch(branch: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    found = registered_gradient(branch.type)(branch, *gradients)
    pairs = zip(branch.inputs, found)
    _made_dense.get().update(t.ref() for t, g in pairs if isinstance(g, tf.IndexedSlices))
    return map_present(densify, found)
