"""Several microbatches and their optimiser updates as one program.

The gradients of ``steps`` microbatches are accumulated before the optimiser is applied once. The
loops over microbatches and updates are loops of the program, so its size does not depend on their
lengths. Microbatches are read in place: no batch is copied as a whole (see
``engine.passes.sinking``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import keras
import tensorflow as tf

from ...engine import build, target_now, trace
from ...engine.graph import densify, tensor_specs, zeros_like
from ...engine.policies import save_everything
from ...op_names import update_scope
from ...seams.keras.training import record_loss
from .emulated_replicas import Replicas


class Reduction(enum.Enum):
    """How the gradients of the microbatches are combined."""

    SUM = "sum"
    MEAN = "mean"
    RUNNING_MEAN = "running_mean"


def accumulate(
    reduction: Reduction, total: tf.Tensor, gradient: tf.Tensor, number: tf.Tensor
) -> tf.Tensor:
    """Return the accumulator ``total`` after adding the ``gradient`` of microbatch ``number``.

    Numbers start at 0. A running mean is at every moment the mean of the microbatches so far, and
    so never larger than their gradients.
    """
    if reduction is not Reduction.RUNNING_MEAN:
        return total + gradient
    share = 1 / tf.cast(number + 1, total.dtype)
    return total * (1 - share) + gradient * share


@dataclass(frozen=True)
class Accumulation:
    """The number of microbatches of one program and of one optimiser update."""

    microbatches: int
    steps: int
    reduction: Reduction = Reduction.SUM

    @property
    def updates(self) -> int:
        """The number of optimiser updates in one program."""
        return self.microbatches // self.steps


# Maps the number of an update's first microbatch to the accumulated gradients, the sum of the
# losses, and a record.
Gradients = Callable[[tf.Tensor], tuple[Sequence[tf.Tensor], tf.Tensor, tf.Tensor]]


def run_accumulated(
    model: keras.Model,
    accumulation: Accumulation,
    gradients_from: Gradients,
    record: tf.TensorSpec,
    replicas: Replicas,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Update ``model`` with the results of ``gradients_from``, in a graph under construction.

    The microbatches of each replica follow one another. Returns one loss and one norm of the
    accumulated gradient per update, of shape ``(updates,)``, and the last update's record, with the
    type and shape of ``record``. The loss of an update is the mean of its microbatches' losses.
    """

    def of_all_replicas(first: tf.Tensor) -> tuple[Sequence[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Sum the gradients over the replicas.

        Keras 2.6's optimisers ask their strategy to do so (Graphcore: replication).
        """
        if replicas.count == 1:
            return gradients_from(first)

        def of_one(r: tf.Tensor, sums: Any, total: tf.Tensor, _: tf.Tensor) -> tuple[Any, ...]:
            gradients, loss, last = gradients_from(r * accumulation.microbatches + first)
            return list(map(add, sums, gradients)), total + loss, last

        sums = [zeros_like(v.value, target_now()) for v in model.trainable_variables]
        sums, total, last = replicas.each(of_one, sums, tf.constant(0.0), nothing)
        return sums, total / replicas.runs, last

    def update(u: tf.Tensor, losses: Any, norms: Any, _: tf.Tensor) -> tuple[Any, ...]:
        gradients, total, last = of_all_replicas(u * accumulation.steps)
        with tf.name_scope(update_scope()), replicas.updating():
            if accumulation.reduction is Reduction.MEAN:
                gradients = [g / accumulation.steps for g in gradients]
            norms = norms.write(u, tf.linalg.global_norm(gradients))
            model.optimizer.apply(gradients, model.trainable_variables)
        return u + 1, losses.write(u, total / accumulation.steps), norms, last

    store = tf.TensorArray(tf.float32, size=accumulation.updates, element_shape=())
    nothing = tf.zeros(record.shape, record.dtype)
    _, losses, norms, last = repeat(
        update, tf.constant(0), accumulation.updates, store, store, nothing
    )
    return losses.stack(), norms.stack(), last


def accumulated_gradients(
    model: keras.Model, feed: Any, accumulation: Accumulation, replicas: Replicas
) -> Gradients:
    """Return the function that runs microbatches ``feed[0], feed[1], ...`` forward and backward."""
    variables = [v.value for v in model.trainable_variables]

    def gradients_from(first: tf.Tensor) -> tuple[Sequence[tf.Tensor], tf.Tensor, tf.Tensor]:
        def microbatch(m: tf.Tensor, sums: list[tf.Tensor], total: tf.Tensor) -> tuple[Any, ...]:
            data = tf.nest.map_structure(lambda t: t[m], feed)
            loss, gradients = _gradients(model, data, variables, replicas)
            totals = []
            for old, gradient in zip(sums, gradients):
                totals.append(accumulate(accumulation.reduction, old, gradient, m - first))
            return m + 1, totals, total + loss

        sums = [zeros_like(v, target_now()) for v in variables]
        _, sums, total = repeat(microbatch, first, accumulation.steps, sums, tf.constant(0.0))
        return sums, total, tf.zeros((0,), tf.int32)

    return gradients_from


def repeat(body: Any, first: tf.Tensor, count: int, *state: Any) -> Any:
    """Run ``body(i, *state)`` for ``count`` values of i, starting at ``first``."""
    # A loop of one iteration only costs compile time.
    if count == 1:
        return body(first, *state)
    return tf.while_loop(
        lambda i, *_: i < first + count,
        body,
        (first, *state),
        maximum_iterations=count,
        parallel_iterations=1,
    )


def _gradients(
    model: Any, data: Any, variables: list[tf.Variable], replicas: Replicas
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the loss of a microbatch and the gradients of ``variables``.

    A gradient is zero where the loss does not depend on the variable. The engine emits both passes,
    without recomputation, so that its own passes apply. The code is in a loop, where XLA:CPU
    compiles TensorFlow's gradients of convolutions to plain loops.
    """

    def losses(*leaves: tf.Tensor) -> list[tf.Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
            tf.nest.pack_sequence_as(data, leaves)
        )
        y_pred = model(x, training=True)
        parts = (x, y, y_pred, sample_weight)
        found = losses_of_each(model, parts, replicas, training=True)
        record_each(model, parts, replicas, found)
        return [model.optimizer.scale_loss(sum_of(found)), mean_of(found)]

    leaves = tf.nest.flatten(data)
    traced = trace(losses, tensor_specs(leaves), target_now())
    first, wanted = len(leaves), {v.ref() for v in variables}
    requested = {first + n: v for n, v in enumerate(traced.variables) if v.ref() in wanted}
    part = build(traced, save_everything, wanted=requested)
    values = traced.values(leaves)
    scaled, reported, *kept = part.forward.write(values)
    # The first output is differentiated, the second is only reported.
    ones = tf.ones_like(scaled), tf.zeros_like(reported)
    incoming = part.joint.incoming_among(ones)
    found = part.backpropagate([*values, *kept, *incoming])
    by_variable = {requested[n].ref(): densify(g) for n, g in enumerate(found) if g is not None}
    return reported, [
        by_variable[v.ref()] if v.ref() in by_variable else zeros_like(v, target_now())
        for v in variables
    ]


def losses_of_each(
    model: Any, parts: tuple[Any, ...], replicas: Replicas, *, training: bool
) -> list[tf.Tensor]:
    """Return the loss of each replica of a run.

    ``parts`` are x, y, predictions and sample weights.
    """
    return [
        model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        for x, y, y_pred, sample_weight in replicas.shares(*parts)
    ]


def record_each(
    model: Any, parts: tuple[Any, ...], replicas: Replicas, losses: Sequence[tf.Tensor]
) -> None:
    """Update the metrics of each replica of a run, as Keras's train step does.

    That includes the "loss" metric.
    """
    for (x, y, y_pred, sample_weight), loss in zip(replicas.shares(*parts), losses):
        record_loss(model, loss, tf.shape(tf.nest.flatten(x)[0])[0])
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def sum_of(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the sum of ``losses``, which is differentiated."""
    return losses[0] if len(losses) == 1 else tf.add_n(losses)


def mean_of(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the mean of ``losses``, which is reported."""
    return tf.cast(losses[0] if len(losses) == 1 else tf.add_n(losses) / len(losses), tf.float32)
