"""Constants and small operations that a graph holds once, however often they are asked for.

Every operation costs the process some kilobytes for as long as its graph lives, and as much again
for every function around it. Hundreds of slices ask for positions, sizes and axes, and few of these
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Union

import tensorflow as tf

from .graph_state import kept_with

Number = Union[int, tf.Tensor]

_ATTRIBUTE = "_keras_recompute_once"


def memoized_op(make: Callable[..., tf.Tensor], *given: Any) -> tf.Tensor:
    """Return ``make(*given)``, made once in the graph under construction.

    ``make`` is a function of a module without effects. It reads ``given`` alone: tensors and other
    values.
    """
    if tf.executing_eagerly():
        return make(*given)
    known: dict[Hashable, tf.Tensor] = kept_with(tf.compat.v1.get_default_graph(), _ATTRIBUTE)
    key = (make, *(g.ref() if isinstance(g, tf.Tensor) else g for g in given))
    if key not in known:
        with tf.control_dependencies(None), tf.name_scope("once/"):
            known[key] = make(*given)
    return known[key]


def constant(value: Hashable, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Return ``value``, a number or a tuple of numbers, as a constant."""
    return memoized_op(tf.constant, value, dtype)


def multiply(number: Number, factor: int) -> Number:
    """Return ``number * factor``."""
    if isinstance(number, int):
        return number * factor
    return (
        number if factor == 1 else memoized_op(tf.multiply, number, constant(factor, number.dtype))
    )


def add(number: Number, term: int) -> Number:
    """Return ``number + term``."""
    if isinstance(number, int):
        return number + term
    return number if term == 0 else memoized_op(tf.add, number, constant(term, number.dtype))


def equal_to(number: tf.Tensor, other: int) -> tf.Tensor:
    """Return whether ``number == other``."""
    return memoized_op(tf.equal, number, constant(other, number.dtype))


def start_indices(axis: int, position: Number, rank: int) -> tf.Tensor:
    """Return ``position`` on ``axis`` and 0 on the other axes, for a tensor of ``rank``."""
    if isinstance(position, int):
        return constant(tuple(position if i == axis else 0 for i in range(rank)))
    return memoized_op(_start_indices, position, axis, rank)


def _start_indices(position: tf.Tensor, axis: int, rank: int) -> tf.Tensor:
    return tf.stack([position if i == axis else constant(0, position.dtype) for i in range(rank)])
