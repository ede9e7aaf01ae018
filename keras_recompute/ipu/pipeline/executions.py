"""The compiled programs of a model: training, and for a pipeline evaluation and prediction.

Each takes ``feed``, the microbatches of one execution stacked along a new first axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from ...engine import target_now
from ...engine.graph import tensor_specs
from ...engine.scan import SliceStore, empty_all, put_all
from ...models.keras_graph.call_graph import Graph
from .accumulation import Accumulation, accumulated_gradients, run_accumulated
from .emulated_replicas import Replicas
from .inference import evaluate_microbatches, predict_microbatches, prediction_specs
from .loop import PipelineLoop
from .model_stages import ModelStages, Task
from .multiworker_update import gradients_of_one_update
from .pipelining_options import PipelineOptions
from .replica_metrics import ReplicatedMetricReductionMethod, reduce_metrics
from .schedule import Schedule
from .stage_program import StageProgram


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A model's stages with the checked options that they run under."""

    model: keras.Model
    functional: keras.Model
    graph: Graph
    options: PipelineOptions
    recompute: bool
    levels: int = 1
    # Filled by tracing a program.
    loops: dict[Task, PipelineLoop] = field(default_factory=dict)

    @cached_property
    def stages(self) -> ModelStages:
        """The work of each stage."""
        mode = self.options.effective_mode if self.recompute else None
        return ModelStages(
            self.model,
            self.functional,
            self.graph,
            schedule=self.options.schedule,
            mode=mode,
            levels=self.levels,
        )

    @property
    def devices(self) -> tuple[int, ...]:
        """The device of each stage: as mapped, else one per stage."""
        return self.options.device_mapping or tuple(range(len(self.stages.stages)))

    @property
    def ipu_of_layer(self) -> dict[str, int]:
        """The device of each layer, by name.

        A layer of several stages is on the device of the first of them.
        """
        found: dict[str, int] = {}
        for call in self.graph.calls:
            found.setdefault(call.operation.name, self.devices[call.stage or 0])
        return found

    def schedule(self, *, trains: bool) -> Schedule:
        """Return the order in which the stages run."""
        return Schedule.of(self.options.schedule, len(self.stages.stages), trains=trains)

    def loop(self, task: Task, feed: Any, microbatches: int, replicas: Replicas) -> PipelineLoop:
        """Return the loop that runs ``microbatches`` of ``feed``.

        Called in a graph under construction.
        """
        data = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape[1:], t.dtype), feed)
        programs: Sequence[StageProgram] = self.stages.programs(task, data, replicas)
        schedule = self.schedule(trains=task is Task.TRAIN)
        self.loops[task] = PipelineLoop(
            schedule, tuple(programs), microbatches, self.options.reduction
        )
        return self.loops[task]


def training_execution(
    model: keras.Model,
    accumulation: Accumulation,
    pipeline: Pipeline | None,
    replicas: Replicas,
    metric_reduction: ReplicatedMetricReductionMethod,
    *,
    is_one_of_several: bool = False,
) -> Any:
    """Return the training program.

    It returns losses and gradient norms, one per update, the log of the stages that ran, and the
    metrics. In one of several processes it is the program of ``gradients_of_one_update``.
    """
    model.optimizer.build(model.trainable_variables)

    def execution(feed: Any) -> Any:
        gradients_from, record = (
            accumulated_gradients(model, feed, accumulation, replicas),
            tf.TensorSpec((0,), tf.int32),
        )
        if pipeline is not None:
            loop = pipeline.loop(Task.TRAIN, feed, accumulation.steps, replicas)
            flat, variables = tf.nest.flatten(feed), [v.value for v in model.trainable_variables]
            record = tf.TensorSpec((loop.log.count,), tf.int32)

            def gradients_from(first: tf.Tensor) -> Any:
                gradients, (losses,), log = loop.run(flat, first, variables)
                return gradients, tf.reduce_sum(losses), log

        if is_one_of_several:
            return gradients_of_one_update(accumulation, gradients_from)
        results = run_accumulated(model, accumulation, gradients_from, record, replicas)
        return *results, reduce_metrics(replicas.metrics_of_each(), metric_reduction)

    return tf.function(execution, jit_compile=True, autograph=False)


def evaluation_execution(
    model: keras.Model,
    pipeline: Pipeline | None,
    replicas: Replicas,
    metric_reduction: ReplicatedMetricReductionMethod,
) -> Any:
    """Return the program that updates the metrics with the microbatches and returns them."""

    def execution(feed: Any) -> Any:
        flat = tf.nest.flatten(feed)
        steps = flat[0].shape[0] // replicas.runs
        loop = pipeline.loop(Task.EVALUATE, feed, steps, replicas) if pipeline else None

        def of_one(r: tf.Tensor) -> list[Any]:
            if loop:
                loop.run(flat, r * steps)
            else:
                evaluate_microbatches(model, feed, r * steps, steps, replicas)
            return []

        replicas.each(of_one)
        return reduce_metrics(replicas.metrics_of_each(), metric_reduction)

    return tf.function(execution, jit_compile=True, autograph=False)


def prediction_execution(model: keras.Model, pipeline: Pipeline | None, replicas: Replicas) -> Any:
    """Return the program that predicts all microbatches.

    The predictions are concatenated along the first axis, in the data's order.
    """

    def execution(feed: Any) -> Any:
        flat = tf.nest.flatten(feed)
        steps = flat[0].shape[0] // replicas.runs
        loop = pipeline.loop(Task.PREDICT, feed, steps, replicas) if pipeline else None
        specs = tensor_specs(loop.reports) if loop else prediction_specs(model, feed)
        pieces = [
            SliceStore(replicas.runs, (steps, *spec.shape), spec.dtype)
            for spec in tf.nest.flatten(specs)
        ]

        def of_one(r: tf.Tensor, stores: list[Any]) -> list[Any]:
            found = (
                loop.run(flat, r * steps)[1]
                if loop
                else predict_microbatches(model, feed, r * steps, steps, specs)
            )
            return [put_all(pieces, stores, r, found)]

        (stores,) = replicas.each(of_one, empty_all(pieces, target_now()))
        joined = [in_order(p.whole(store)) for p, store in zip(pieces, stores)]
        return (
            pipeline.stages.packed(joined) if pipeline else tf.nest.pack_sequence_as(specs, joined)
        )

    return tf.function(execution, jit_compile=True, autograph=False)


def in_order(predicted: tf.Tensor) -> tf.Tensor:
    """Return predictions ``(runs, steps, batch, ...)`` in the data's order.

    A step of the data has the microbatches of all runs.
    """
    by_step = tf.transpose(predicted, [1, 0, *range(2, predicted.shape.rank)])
    return tf.reshape(by_step, (-1, *predicted.shape[3:]))
