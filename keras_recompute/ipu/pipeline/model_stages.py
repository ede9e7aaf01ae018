"""The pipeline stages of a Keras model as programs, for training, evaluation and prediction.

Each stage calls its layers as the model does. The last stage returns the loss and updates the
metrics, or returns the predictions. Masks and losses that layers add are passed on to the stages
that need them (see ``models.side_outputs``).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...engine.policies import Policy, save_nothing
from ...models.execution.executor import ExecutionPlan, execute
from ...models.execution.side_outputs import SideOutputs
from ...models.keras_graph.call_graph import Graph
from ...models.keras_graph.timestep_concat import commute_concat
from ...seams.keras.graph import flat_inputs
from ...seams.keras.layers import layers_in, losses_of, remove_losses
from .accumulation import losses_of_each, mean_of, record_each, sum_of
from .emulated_replicas import Replicas
from .pipelining_ops import PipelineSchedule, RecomputationMode
from .schedule import Schedule
from .stage_program import StageProgram, StageScope, Work, forward_only, save_tensors, stage_program
from .staged_graph import stage_graphs


class Task(enum.Enum):
    """The purpose that a pipeline runs for."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"


class ModelStages:
    """The stages of ``model``, with layer calls as in ``functional`` and stages as in ``graph``.

    ``mode`` is None if nothing is recomputed. ``levels`` is as for ``ExecutionPlan``.
    """

    def __init__(
        self,
        model: keras.Model,
        functional: keras.Model,
        graph: Graph,
        *,
        schedule: PipelineSchedule,
        mode: RecomputationMode | None,
        levels: int = 1,
    ) -> None:
        self.model, self.functional, self.mode = model, functional, mode
        is_interleaved = mode is RecomputationMode.RecomputeAndBackpropagateInterleaved
        count = 1 + max(call.stage or 0 for call in graph.calls)
        if is_interleaved and schedule is PipelineSchedule.Sequential:
            # Stages of one microbatch run consecutively, so work may move to the previous stage.
            graph = commute_concat(graph)
        self.graph, self.stages = graph, stage_graphs(graph, count)
        plans = []
        for number, stage in enumerate(self.stages):
            if not is_interleaved:
                plans.append(ExecutionPlan.without_recomputation(stage))
                continue
            # A stash holds only checkpoints, because its size is multiplied by its microbatches.
            has_stash = Schedule.of(schedule, count).stash_depth(number) > 0
            replays_end = number < count - 1
            plan = ExecutionPlan.of(
                stage, levels, replays_end=replays_end, keeps_results=not has_stash
            )
            plans.append(plan)
        self.plans = tuple(plans)

    def programs(self, task: Task, data: Any, replicas: Replicas) -> tuple[StageProgram, ...]:
        """Trace the stages for microbatches like ``data``, a nest of specs.

        Called in a graph under construction.
        """
        # Losses of an earlier trace would belong to another graph.
        for layer in layers_in(self.model):
            # As Keras does when a model is called.
            remove_losses(layer, losses_of(layer))
        found: list[StageProgram] = []
        before: SideOutputs | None = None
        for number in range(len(self.plans)):
            side_outputs = SideOutputs(self.graph.calls)
            received = found[-1].outputs if found else ()
            work = self._work(number, task, before, side_outputs, replicas)
            if task is Task.TRAIN:
                found.append(stage_program(work, received, data, policy=self._policy(number)))
            else:
                found.append(forward_only(work, received, data))
            before = side_outputs
        return tuple(found)

    def _policy(self, number: int) -> Policy:
        """Return which residuals stage ``number`` saves."""
        replays_all = (
            self.mode is RecomputationMode.RecomputeThenBackpropagate
            and number < len(self.plans) - 1
        )
        return save_nothing if replays_all else save_tensors

    def _work(
        self,
        number: int,
        task: Task,
        before: SideOutputs | None,
        side_outputs: SideOutputs,
        replicas: Replicas,
    ) -> Work:
        """Return the function that runs stage ``number``."""
        is_training = task is Task.TRAIN
        plan = (
            self.plans[number]
            if is_training
            else ExecutionPlan.without_recomputation(self.stages[number])
        )

        def work(received: list[tf.Tensor], data: Any) -> Sequence[tf.Tensor]:
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            inputs = flat_inputs(self.functional, x)

            def run() -> list[tf.Tensor]:
                values = before.reattach(received) if before is not None else []
                scope = StageScope(lambda: execute(plan, [*inputs, *values]), self.model.name)
                return scope(training=is_training)

            if number < len(self.plans) - 1:
                return side_outputs.collect(run)
            if task is Task.PREDICT:
                return side_outputs.collect(run)[: len(self.graph.outputs)]
            return side_outputs.collect(
                lambda: self._loss((x, y, sample_weight), run(), replicas, is_training)
            )[: 1 + is_training]

        return work

    def _loss(
        self, data: Any, outputs: list[tf.Tensor], replicas: Replicas, training: bool
    ) -> list[tf.Tensor]:
        """Update the metrics and return the reported loss.

        In training the loss that is differentiated comes before it.
        """
        (x, y, sample_weight), y_pred = data, self.packed(outputs)
        parts = (x, y, y_pred, sample_weight)
        losses = losses_of_each(self.model, parts, replicas, training=training)
        record_each(self.model, parts, replicas, losses)
        reported = mean_of(losses)
        return (
            [self.model.optimizer.scale_loss(sum_of(losses)), reported] if training else [reported]
        )

    def packed(self, outputs: Sequence[Any]) -> Any:
        """Return the flat ``outputs`` in the structure of the model's outputs."""
        y_pred = keras.tree.pack_sequence_as(self.functional.output, list(outputs))
        return y_pred[0] if isinstance(y_pred, (list, tuple)) and len(y_pred) == 1 else y_pred
