"""Several microbatches and their optimiser updates as one program.

Each microbatch runs forward and backward; the gradients of ``accumulation_steps`` of them are added up before the
optimiser is applied once. Both loops are loops of the program, so its size does not depend on their lengths, and the
microbatches are read where they lie: no batch is ever copied whole (see ``engine.sink``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ..phases import update_scope


@dataclass(frozen=True)
class Accumulation:
    """How many microbatches one program takes, and how many of their gradients make one optimiser update."""

    microbatches: int
    steps: int
    mean: bool = False

    @property
    def updates(self) -> int:
        """The number of optimiser updates in one program."""
        return self.microbatches // self.steps


def run_accumulated(model: keras.Model, feed: Any, accumulation: Accumulation) -> tuple[tf.Tensor, tf.Tensor]:
    """Train ``model`` on the microbatches ``feed[0], feed[1], ...`` inside a graph under construction.

    Returns the loss and the norm of the accumulated gradient, one each per update, both of shape ``(updates,)``. The loss
    of an update is the mean of its microbatches' losses.
    """
    variables = [v.value for v in model.trainable_variables]

    def microbatch(m: tf.Tensor, sums: list[tf.Tensor], total: tf.Tensor) -> tuple[Any, ...]:
        loss, gradients = _gradients(model, tf.nest.map_structure(lambda t: t[m], feed), variables)
        return m + 1, [s + g for s, g in zip(sums, gradients)], total + loss

    def update(u: tf.Tensor, losses: tf.TensorArray, norms: tf.TensorArray) -> tuple[Any, ...]:
        first = u * accumulation.steps
        sums = [tf.zeros_like(v) for v in variables]
        _, sums, total = _repeat(microbatch, first, accumulation.steps, sums, tf.constant(0.0))
        with tf.name_scope(update_scope()):
            if accumulation.mean:
                sums = [s / accumulation.steps for s in sums]
            norms = norms.write(u, tf.linalg.global_norm(sums))
            model.optimizer.apply(sums, model.trainable_variables)
        return u + 1, losses.write(u, total / accumulation.steps), norms

    store = tf.TensorArray(tf.float32, size=accumulation.updates, element_shape=())
    _, losses, norms = _repeat(update, tf.constant(0), accumulation.updates, store, store)
    return losses.stack(), norms.stack()


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
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    size = tf.shape(tf.nest.flatten(x)[0])[0]
    # Keras's own train step keeps its "loss" metric this way.
    model._loss_tracker.update_state(loss, sample_weight=size)
    model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return tf.cast(loss, tf.float32), [tf.convert_to_tensor(g) for g in gradients]
