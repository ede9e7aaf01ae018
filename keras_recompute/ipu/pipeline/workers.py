"""Several processes train copies of one model: each runs its own microbatches, and their gradients are put together.

An addition to Graphcore's API, which has poprun and popdist for it. An execution is then two programs: the gradients of one
update, compiled by XLA, and the update, which is not, since XLA has no collectives on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...phases import update_scope
from .accumulate import Accumulation, Gradients, Reduction


def gradients_of_one_update(
    model: keras.Model, accumulation: Accumulation, gradients_from: Gradients
) -> tuple[Sequence[tf.Tensor], tf.Tensor, tf.Tensor, Any]:
    """Return the gradients of this process's microbatches, their mean loss, the record of what ran, and the metrics."""
    gradients, total, record = gradients_from(tf.constant(0))
    if accumulation.reduction is Reduction.MEAN:
        gradients = [g / accumulation.steps for g in gradients]
    return gradients, total / accumulation.steps, record, model.get_metrics_result()


def update_of_all(model: Any, accumulation: Accumulation, strategy: tf.distribute.Strategy) -> Callable[..., Any]:
    """Return the function that updates ``model`` in every process from what ``gradients_of_one_update`` returned in each.

    The update is that of one process with the microbatches of all. The function returns the loss and the norm of the gradient,
    each of shape ``(1,)``, and the metrics, which are means over the processes.
    """

    def put_together(tensors: Sequence[tf.Tensor], how: str) -> list[tf.Tensor]:
        """Return each of ``tensors`` over all processes, by one collective for those of a type."""
        found: dict[int, tf.Tensor] = {}
        for dtype in {t.dtype for t in tensors}:
            numbers = [number for number, t in enumerate(tensors) if t.dtype == dtype]
            joined = tf.concat([tf.reshape(tensors[number], [-1]) for number in numbers], 0)
            joined = strategy.reduce(how, joined, axis=None)
            parts = tf.split(joined, [tensors[number].shape.num_elements() for number in numbers])
            found.update((number, tf.reshape(part, tensors[number].shape)) for number, part in zip(numbers, parts))
        return [found[number] for number in range(len(tensors))]

    @tf.function(autograph=False)
    def update(gradients: Sequence[tf.Tensor], loss: tf.Tensor, metrics: Any) -> Any:
        with tf.name_scope(update_scope()):
            gradients = put_together(gradients, "SUM" if accumulation.reduction is Reduction.SUM else "MEAN")
            loss, *values = put_together([loss, *tf.nest.flatten(metrics)], "MEAN")
            norm = tf.linalg.global_norm(gradients)
            model.optimizer.apply(gradients, model.trainable_variables)
        return loss[None], norm[None], tf.nest.pack_sequence_as(metrics, values)

    return update
