"""Calls of a function with a hand-written VJP, differentiable to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..engine import custom_vjp_twice, in_vectorized_map
from ..engine.graph import capture_all

Tensors = Sequence[tf.Tensor]
# Takes tensors; returns its results, and their VJP: a function from the gradients of the results to
# those of the arguments.
Recurrence = Callable[..., tuple[Tensors, Callable[..., Tensors]]]


def call_with_vjp(recurrence: Recurrence, *inputs: tf.Tensor, count: int, name: str) -> Any:
    """Return ``count`` results of ``recurrence(*inputs)`` with its hand-written first derivative.

    Higher derivatives are those of the recurrence itself.
    """
    # In a graph, tf.custom_gradient would leave an entry in a registry for each use.
    if tf.executing_eagerly():
        return tf.custom_gradient(recurrence)(*inputs)
    inputs = tuple(capture_all(inputs))
    if in_vectorized_map():
        return recurrence(*inputs)[0]
    made: list[Any] = []

    def compute() -> Tensors:
        made[:] = recurrence(*inputs)
        return made[0]

    def gradient(_inputs: Tensors, _made: Tensors, result_gradients: Sequence[Any]) -> Tensors:
        return made[1](*result_gradients)

    def recompute_primal(inputs: Tensors, _: Tensors) -> Tensors:
        return recurrence(*inputs)[0]

    return custom_vjp_twice(
        compute, gradient, recompute_primal, inputs=inputs, count=count, name=name
    )
