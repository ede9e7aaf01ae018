"""Several microbatches and their optimiser updates as one program.

The gradients of ``steps`` microbatches are put together before the optimiser is applied once. Both loops, over the
microbatches and over the updates, are loops of the program, so its size does not depend on their lengths, and the
microbatches are read where they lie: no batch is ever copied whole (see ``engine.passes.sinking``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ...engine.passes import target_now
from ...engine.writing import zeros_like
from ...phases import update_scope
from ...seams.keras.training import note_loss


class Reduction(enum.Enum):
    """How the gradients of the microbatches are put together."""

    SUM = "sum"
    MEAN = "mean"
    RUNNING_MEAN = "running_mean"


def accumulated(reduction: Reduction, total: tf.Tensor, gradient: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Return the accumulator ``total`` with the ``gradient`` of microbatch ``number``, counted from 0.

    A running mean is the mean of those seen so far at every moment, and so never larger than they are.
    """
    if reduction is not Reduction.RUNNING_MEAN:
        return total + gradient
    share = 1 / tf.cast(number + 1, total.dtype)
    return total * (1 - share) + gradient * share


@dataclass(frozen=True)
class Accumulation:
    """How many microbatches one program takes, and how many of their gradients make one optimiser update."""

    microbatches: int
    steps: int
    reduction: Reduction = Reduction.SUM

    @property
    def updates(self) -> int:
        """The number of optimiser updates in one program."""
        return self.microbatches // self.steps


# Takes the number of an update's first microbatch; returns the accumulated gradients, the sum of the losses, and a record.
Gradients = Callable[[tf.Tensor], tuple[Sequence[tf.Tensor], tf.Tensor, tf.Tensor]]


def run_accumulated(
    model: keras.Model, accumulation: Accumulation, gradients_from: Gradients, record: tf.TensorSpec
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Update ``model`` with what ``gradients_from`` returns, inside a graph under construction.

    Returns one loss and one norm of the accumulated gradient per update, of shape ``(updates,)``, and the last update's
    record, which is like ``record``. The loss of an update is the mean of its microbatches' losses.
    """

    def update(u: tf.Tensor, losses: Any, norms: Any, _: tf.Tensor) -> tuple[Any, ...]:
        gradients, total, last = gradients_from(u * accumulation.steps)
        with tf.name_scope(update_scope()):
            if accumulation.reduction is Reduction.MEAN:
                gradients = [g / accumulation.steps for g in gradients]
            norms = norms.write(u, tf.linalg.global_norm(gradients))
            model.optimizer.apply(gradients, model.trainable_variables)
        return u + 1, losses.write(u, total / accumulation.steps), norms, last

    store = tf.TensorArray(tf.float32, size=accumulation.updates, element_shape=())
    nothing = tf.zeros(record.shape, record.dtype)
    _, losses, norms, last = _repeat(update, tf.constant(0), accumulation.updates, store, store, nothing)
    return losses.stack(), norms.stack(), last


def accumulated_gradients(model: keras.Model, feed: Any, accumulation: Accumulation) -> Gradients:
    """Return the function that runs microbatches ``feed[0], feed[1], ...`` forward and backward, one after the other."""
    variables = [v.value for v in model.trainable_variables]

    def gradients_from(first: tf.Tensor) -> tuple[Sequence[tf.Tensor], tf.Tensor, tf.Tensor]:
        def microbatch(m: tf.Tensor, sums: list[tf.Tensor], total: tf.Tensor) -> tuple[Any, ...]:
            loss, gradients = _gradients(model, tf.nest.map_structure(lambda t: t[m], feed), variables)
            sums = [accumulated(accumulation.reduction, s, g, m - first) for s, g in zip(sums, gradients)]
            return m + 1, sums, total + loss

        sums = [zeros_like(v, target_now()) for v in variables]
        _, sums, total = _repeat(microbatch, first, accumulation.steps, sums, tf.constant(0.0))
        return sums, total, tf.zeros((0,), tf.int32)

    return gradients_from


def _repeat(body: Any, first: tf.Tensor, count: int, *state: Any) -> Any:
    """Run ``body(i, *state)`` for ``count`` values of i from ``first``."""
    if count == 1:
        return body(first, *state)
    return tf.while_loop(
        lambda i, *_: i < first + count, body, (first, *state), maximum_iterations=count, parallel_iterations=1
    )


def _gradients(model: Any, data: Any, variables: list[tf.Variable]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, variables, unconnected_gradients="zero")
    note_metrics(model, x, y, y_pred, sample_weight, loss)
    return tf.cast(loss, tf.float32), [tf.convert_to_tensor(g) for g in gradients]


def note_metrics(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, loss: tf.Tensor) -> None:
    """Update the metrics of ``model`` as Keras's own train step does, which keeps its "loss" metric this way."""
    note_loss(model, loss, tf.shape(tf.nest.flatten(x)[0])[0])
    model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
