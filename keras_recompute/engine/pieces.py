"""Equal pieces of a tensor, written and read one at a time inside loops.

Under XLA a loop updates a tensor in place, so the pieces go straight to where they belong, along any axis. TensorFlow
alone has no such update and collects the pieces in an array, which is joined after the loop at the price of a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Union

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from .compiler import under_xla

Index = Union[int, tf.Tensor]


@dataclass(frozen=True)
class Pieces:
    """``count`` pieces of ``shape``, joined along ``axis``, or stacked along a new first axis where ``axis`` is None.

    The store that ``empty`` returns is a loop variable: ``put`` returns the store after writing, ``get`` reads a piece
    that was written, ``whole`` returns all pieces as one tensor.
    """

    count: int
    shape: tf.TensorShape
    dtype: tf.DType
    axis: Optional[int] = None

    def empty(self) -> Any:
        """Return a store in which every piece is still to be written."""
        if under_xla():
            sizes = self.shape.as_list()
            if self.axis is None:
                sizes = [self.count, *sizes]
            else:
                sizes[self.axis] *= self.count
            return tf.zeros(sizes, self.dtype)
        return tf.TensorArray(self.dtype, size=self.count, element_shape=self.shape, clear_after_read=False)

    def full(self, whole: tf.Tensor) -> Any:
        """Return the store that holds the pieces of ``whole``."""
        if under_xla():
            return whole
        stacked = whole if self.axis is None else _split(whole, self.axis, self.shape[self.axis])
        return self.empty().unstack(stacked)

    def put(self, store: Any, number: Index, piece: tf.Tensor) -> Any:
        if isinstance(store, tf.TensorArray):
            return store.write(number, piece)
        if self.axis is None:
            return gen_xla_ops.xla_dynamic_update_slice(store, piece[None], _begin(number, 0, store.shape.rank))
        begin = _begin(number * self.shape[self.axis], self.axis, store.shape.rank)
        return gen_xla_ops.xla_dynamic_update_slice(store, piece, begin)

    def get(self, store: Any, number: Index) -> tf.Tensor:
        if isinstance(store, tf.TensorArray):
            return store.read(number)
        if self.axis is None:
            return tf.squeeze(take(store, 0, number, 1), 0)
        length = self.shape[self.axis]
        return take(store, self.axis, number * length, length)

    def whole(self, store: Any) -> tf.Tensor:
        if not isinstance(store, tf.TensorArray):
            return store
        stacked = store.stack()
        return stacked if self.axis is None else _joined(stacked, self.axis)


def take(whole: tf.Tensor, axis: int, begin: Index, length: int) -> tf.Tensor:
    """Return ``length`` steps of ``whole`` along ``axis``, from ``begin``, which may be computed."""
    size = [-1 if d is None else d for d in whole.shape]
    size[axis] = length
    return tf.slice(whole, _begin(begin, axis, whole.shape.rank), size)


def embed(part: tf.Tensor, whole: tf.Tensor, axis: int, start: int) -> tf.Tensor:
    """Return zeros like ``whole`` with ``part`` at ``start`` along ``axis``."""
    after = whole.shape[axis] - start - part.shape[axis]
    if start == 0 and after == 0:
        return part
    return tf.pad(part, [(start, after) if i == axis else (0, 0) for i in range(whole.shape.rank)])


def _begin(position: Index, axis: int, rank: int) -> tf.Tensor:
    return tf.stack([position if i == axis else 0 for i in range(rank)])


def _joined(stacked: tf.Tensor, axis: int) -> tf.Tensor:
    rank = stacked.shape.rank
    moved = tf.transpose(stacked, [*range(1, axis + 1), 0, *range(axis + 1, rank)])
    static = moved.shape.as_list()
    dynamic = tf.unstack(tf.shape(moved)) if None in static else static
    sizes = [d if d is not None else dynamic[i] for i, d in enumerate(static)]
    return tf.reshape(moved, [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]])


def _split(whole: tf.Tensor, axis: int, length: int) -> tf.Tensor:
    """The inverse of ``_joined``: pieces of ``length`` steps along ``axis``, stacked along a new first axis."""
    static = whole.shape.as_list()
    dynamic = tf.unstack(tf.shape(whole)) if None in static else static
    sizes = [d if d is not None else dynamic[i] for i, d in enumerate(static)]
    divided = tf.reshape(whole, [*sizes[:axis], static[axis] // length, length, *sizes[axis + 1 :]])
    return tf.transpose(divided, [axis, *range(axis), *range(axis + 1, len(sizes) + 1)])
