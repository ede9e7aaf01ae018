"""The update of a model that several processes train together.

Each process runs its own microbatches, and their gradients are combined. This is an addition to
Graphcore's API, which has poprun and popdist for it. An execution is two programs: the gradients of
one update, compiled by XLA, and the update, which is not compiled, because XLA has no collectives
on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from ...op_names import update_scope
from .accumulation import Accumulation, Gradients, Reduction

_Result = TypeVar("_Result")


def gradients_of_one_update(
    accumulation: Accumulation, gradients_from: Gradients
) -> tuple[Sequence[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Return this process's gradients, the mean loss, and the record of what ran."""
    gradients, total, record = gradients_from(tf.constant(0))
    if accumulation.reduction is Reduction.MEAN:
        gradients = [g / accumulation.steps for g in gradients]
    return gradients, total / accumulation.steps, record


def update_of_all(
    model: Any, accumulation: Accumulation, strategy: tf.distribute.Strategy
) -> Callable[..., Any]:
    """Return the function that updates ``model`` in every process.

    It takes the gradients and the loss of this process. The update is that of one process with the
    microbatches of all. It returns the loss and the norm of the gradient, each of shape ``(1,)``.
    """

    @tf.function(autograph=False)
    def update(gradients: Sequence[tf.Tensor], loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.name_scope(update_scope()):
            gradients = _reduce_over_processes(
                strategy, gradients, "SUM" if accumulation.reduction is Reduction.SUM else "MEAN"
            )
            (loss,) = _reduce_over_processes(strategy, [loss], "MEAN")
            norm = tf.linalg.global_norm(gradients)
            model.optimizer.apply(gradients, model.trainable_variables)
        return loss[None], norm[None]

    return update


def with_metrics_of_all(
    model: Any, strategy: tf.distribute.Strategy, read: Callable[[], _Result]
) -> _Result:
    """Return ``read()`` while the metrics of ``model`` hold the sums over all processes.

    Afterwards they hold this process's values again.
    """
    variables = model.metrics_variables
    own = [tf.identity(variable.value) for variable in variables]
    try:
        for variable, total in zip(variables, _reduce_over_processes(strategy, own, "SUM")):
            variable.assign(total)
        return read()
    finally:
        for variable, value in zip(variables, own):
            variable.assign(value)


def _reduce_over_processes(
    strategy: tf.distribute.Strategy, tensors: Sequence[tf.Tensor], how: str
) -> list[tf.Tensor]:
    """Return each of ``tensors`` reduced over all processes, with one collective per type."""
    # A collective has a fixed cost, so tensors of one type share one. Every process must run the
    # collectives in the same order, so a set of types will not do.
    numbers_of: dict[tf.DType, list[int]] = {}
    for number, tensor in enumerate(tensors):
        numbers_of.setdefault(tensor.dtype, []).append(number)
    reduced = list(tensors)
    for numbers in numbers_of.values():
        flat, sizes = [], []
        for number in numbers:
            flat.append(tf.reshape(tensors[number], [-1]))
            sizes.append(tensors[number].shape.num_elements())
        joined = strategy.reduce(how, tf.concat(flat, 0), axis=None)
        for number, part in zip(numbers, tf.split(joined, sizes)):
            reduced[number] = tf.reshape(part, tensors[number].shape)
    return reduced
