"""Stores of equal slices of a tensor, written and read one at a time inside loops.

Under XLA a loop updates a tensor in place, so the slices go straight to where they belong, along
any axis. TensorFlow alone has no such update. It collects the slices in a TensorArray, which is
joined after the loop for the price of a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

import tensorflow as tf

from ...seams.tensorflow.tensors import with_flow
from ...seams.tensorflow.xla import xla_dynamic_update_slice
from ..graph.graph_constants import Number, constant, multiply, start_indices
from ..graph.target import Target
from ..graph.target_ops import dynamic_slice, zeros, zeros_like
from ..passes import target_now

Dimension = Union[int, tf.Tensor]


@dataclass(frozen=True)
class SliceStore:
    """``count`` slices of ``shape``, joined along ``axis``, or stacked if it is None.

    A dimension may be a scalar tensor where it is not known before the program runs, but not the
    one along ``axis``. The store that ``empty`` returns is a loop variable: ``put`` returns the
    store after writing, ``get`` reads a slice that was written, ``whole`` returns all slices as one
    tensor.
    """

    count: int
    shape: tuple[Dimension, ...]
    dtype: tf.DType
    axis: int | None = None

    def empty(self, target: Target) -> Any:
        """Return a store without slices."""
        if target.updates_in_place:
            sizes = list(self.shape)
            if self.axis is None:
                sizes = [self.count, *sizes]
            else:
                sizes[self.axis] *= self.count
            return zeros(sizes, self.dtype, target)
        element_shape = [d if isinstance(d, int) else None for d in self.shape]
        return tf.TensorArray(
            self.dtype, size=self.count, element_shape=element_shape, clear_after_read=False
        )

    def full(self, whole: tf.Tensor, target: Target) -> Any:
        """Return the store that holds the slices of ``whole``."""
        if target.updates_in_place:
            return whole
        stacked = whole if self.axis is None else _split(whole, self.axis, self.shape[self.axis])
        return self.empty(target).unstack(stacked)

    def put(self, store: Any, number: Number, piece: tf.Tensor) -> Any:
        """Return ``store`` with ``piece``, of this object's ``shape``, as slice ``number``.

        The store that was given may not be used again.
        """
        if isinstance(store, tf.TensorArray):
            return store.write(number, piece)
        if self.axis is None:
            begin = start_indices(0, number, store.shape.rank)
            return xla_dynamic_update_slice(store, tf.expand_dims(piece, constant(0)), begin)
        # XLA writes in place if the old store has no other reader.
        begin = start_indices(self.axis, multiply(number, self.shape[self.axis]), store.shape.rank)
        return xla_dynamic_update_slice(store, piece, begin)

    def get(self, store: Any, number: Number) -> tf.Tensor:
        """Return slice ``number`` of ``store``, which must have been written."""
        if isinstance(store, tf.TensorArray):
            return store.read(number)
        return self.slice(store, number)

    def slice(self, whole: tf.Tensor, number: Number) -> tf.Tensor:
        """Return slice ``number`` of the tensor that holds all of them."""
        if self.axis is None:
            return tf.squeeze(dynamic_slice(whole, 0, number, 1), 0)
        length = self.shape[self.axis]
        return dynamic_slice(whole, self.axis, multiply(number, length), length)

    def whole(self, store: Any) -> tf.Tensor:
        """Return all slices as one tensor.

        It is ``(count, *shape)``, or ``shape`` with ``count`` times its size along ``axis``.
        """
        if not isinstance(store, tf.TensorArray):
            return store
        stacked = store.stack()
        return stacked if self.axis is None else _joined(stacked, self.axis)


class Store(Protocol):
    """A description of a store: a ``SliceStore``, or the ``CarryStore`` of a loop."""

    def empty(self, target: Target) -> Any: ...

    def put(self, store: Any, number: Any, piece: tf.Tensor, /) -> Any: ...


def empty_all(descriptions: Iterable[Store], target: Target) -> list[Any]:
    """Return an empty store for each of ``descriptions``."""
    return [each.empty(target) for each in descriptions]


def put_all(
    descriptions: Iterable[Store], stores: Iterable[Any], number: Any, slices: Iterable[tf.Tensor]
) -> list[Any]:
    """Return ``stores`` with one of ``slices`` each, as slice ``number``."""
    triples = zip(descriptions, stores, slices)
    return [each.put(store, number, piece) for each, store, piece in triples]


def get_all(
    descriptions: Iterable[SliceStore], stores: Iterable[Any], number: Number
) -> list[tf.Tensor]:
    """Return slice ``number`` of each of ``stores``."""
    return [each.get(store, number) for each, store in zip(descriptions, stores)]


def whole_all(descriptions: Iterable[SliceStore], stores: Iterable[Any]) -> list[tf.Tensor]:
    """Return all slices of each of ``stores`` as one tensor."""
    return [each.whole(store) for each, store in zip(descriptions, stores)]


def tensor_handles(stores: Any) -> list[tf.Tensor]:
    """Return the tensor behind each store in a nest of stores."""
    return list(map(_tensor_behind, tf.nest.flatten(stores)))


def _tensor_behind(store: Any) -> tf.Tensor:
    return store.flow if isinstance(store, tf.TensorArray) else store


def with_tensor_handles(stores: Any, tensors: Sequence[tf.Tensor]) -> Any:
    """Return the nest of stores with ``tensors`` behind them.

    ``tensors`` are in the order of ``tensor_handles``.
    """
    pairs = zip(tf.nest.flatten(stores), tensors)
    changed = [with_flow(s, t) if isinstance(s, tf.TensorArray) else t for s, t in pairs]
    return tf.nest.pack_sequence_as(stores, changed)


def dimensions(tensor: tf.Tensor) -> tuple[Dimension, ...]:
    """Return the shape of ``tensor``: numbers if they are known, else scalar tensors."""
    static = tensor.shape.as_list()
    return (
        tuple(static)
        if None not in static
        else tuple(tf.shape(tensor)[i] if d is None else d for i, d in enumerate(static))
    )


def pad_into(part: tf.Tensor, whole: tf.Tensor, axis: int, start: int) -> tf.Tensor:
    """Return zeros like ``whole`` with ``part`` at ``start`` along ``axis``."""
    after = whole.shape[axis] - start - part.shape[axis]
    if start == 0 and after == 0:
        return part
    paddings = [(0, 0)] * whole.shape.rank
    paddings[axis] = (start, after)
    return tf.pad(part, paddings)


def _joined(stacked: tf.Tensor, axis: int) -> tf.Tensor:
    rank = stacked.shape.rank
    moved = tf.transpose(stacked, [*range(1, axis + 1), 0, *range(axis + 1, rank)])
    sizes = dimensions(moved)
    return tf.reshape(moved, [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]])


def _split(whole: tf.Tensor, axis: int, length: int) -> tf.Tensor:
    """The inverse of ``_joined``: slices of ``length`` steps along ``axis``, stacked."""
    sizes = dimensions(whole)
    slices = tf.reshape(
        whole, [*sizes[:axis], whole.shape[axis] // length, length, *sizes[axis + 1 :]]
    )
    return tf.transpose(slices, [axis, *range(axis), *range(axis + 1, len(sizes) + 1)])


def _gradient_of_update(operation: tf.Operation, gradient: tf.Tensor) -> list[tf.Tensor | None]:
    """Return the gradient of the store, without the overwritten slice, and that of the slice."""
    _, piece, begin = operation.inputs
    outside = xla_dynamic_update_slice(gradient, zeros_like(piece, target_now()), begin)
    return [outside, tf.slice(gradient, begin, tf.shape(piece)), None]


# TensorFlow differentiates a slice into this operation and then no further. A later TensorFlow may.
with contextlib.suppress(KeyError):
    tf.RegisterGradient("XlaDynamicUpdateSlice")(_gradient_of_update)
