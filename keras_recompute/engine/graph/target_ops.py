"""Operations that are written otherwise for another target: fences, zeros, slices in loops.

Each function is right for every target as it is here, and takes what the passes of the target make
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import tensorflow as tf

from .graph_constants import Number, constant, start_indices
from .target import Target

# What a result of a fenced body is like: a tensor of its type and shape, or what makes one.
Like = Union[tf.Tensor, Callable[[], tf.Tensor]]


@dataclass(frozen=True)
class CheapReplay:
    """What a replay of elementwise arithmetic alone begins and ends with, as numbers.

    ``read`` are the inputs that it repeats arithmetic from. ``handed_on`` are the results from
    which back-propagation goes on, and ``finished`` the requested gradients of variables.
    ``is_updated``: the same program updates these variables.

    ``awaited`` has, for each of ``read``, the number of the result that its copy waits for, after
    the results of the program. If it is None, the copy waits for the incoming gradients.
    """

    read: tuple[int, ...]
    handed_on: tuple[int, ...]
    finished: tuple[int, ...]
    awaited: tuple[int | None, ...] = ()
    is_updated: bool = False


def fenced(
    body: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    inputs: Sequence[tf.Tensor],
    *,
    after: Sequence[tf.Tensor],
    like: Sequence[Like],
    target: Target,
    cheap: CheapReplay | None = None,
) -> list[tf.Tensor]:
    """Return ``body(inputs)``, computed only once every tensor of ``after`` is there.

    ``like`` holds for each result a tensor of the same type and shape, or a function that makes
    one. ``cheap`` describes a ``body`` that is cheap. Without a pass of the target the body is
    called as it is.
    """
    results = target.first("fence", body, inputs, after, like, cheap, target)
    return body(inputs) if results is None else results


def completion_token(tensors: Sequence[tf.Tensor], target: Target) -> tf.Tensor:
    """Return a float32 scalar that is computed after each of ``tensors``."""
    token = target.first("completion", tensors)
    if token is not None:
        return token
    with tf.control_dependencies(tensors):
        return tf.zeros(())


def delay(tensors: Sequence[tf.Tensor], target: Target, *, after: Sequence[tf.Tensor]) -> list[Any]:
    """Return ``tensors``, which a compiler computes no earlier than ``after``.

    Only a compiler that starts work early needs this. Elsewhere the tensors are returned as they
    are, and so is what is not a tensor, such as a store of ``SliceStore``.
    """
    made = target.first("delay", tensors, after)
    return list(tensors) if made is None else made


def zeros(shape: Sequence[int | tf.Tensor], dtype: tf.DType, target: Target) -> tf.Tensor:
    """Return zeros of ``shape``, whose dimensions may be scalar tensors."""
    made = target.first("zeros", shape, dtype)
    return tf.zeros(shape, dtype) if made is None else made


def zeros_like(tensor: tf.Tensor, target: Target) -> tf.Tensor:
    """Return zeros of the type and shape of ``tensor``."""
    is_plain = tensor.shape.is_fully_defined() and tensor.dtype not in (tf.variant, tf.resource)
    return (
        zeros(tensor.shape.as_list(), tensor.dtype, target) if is_plain else tf.zeros_like(tensor)
    )


def slice_in_loop(
    whole: tf.Tensor, axis: int, begin: Number, length: int, target: Target
) -> tf.Tensor:
    """Return ``length`` steps of ``whole`` along ``axis``, in the loop body under construction.

    They start at ``begin``.
    """
    is_outside = hasattr(whole, "graph") and whole.graph is not tf.compat.v1.get_default_graph()
    piece = target.first("slice", whole, axis, begin, length, target) if is_outside else None
    return dynamic_slice(whole, axis, begin, length) if piece is None else piece


def dynamic_slice(whole: tf.Tensor, axis: int, begin: Number, length: int) -> tf.Tensor:
    """Return ``length`` steps of ``whole`` along ``axis``, from a computed ``begin``."""
    size = [-1 if d is None else d for d in whole.shape]
    size[axis] = length
    return tf.slice(whole, start_indices(axis, begin, whole.shape.rank), constant(tuple(size)))


def with_body_passes(body: Callable[..., Any], target: Target) -> Callable[..., Any]:
    """Return ``body``, a function that writes operations, with the target's passes around it."""
    for around in target.at("body"):
        body = around(body)
    return body
