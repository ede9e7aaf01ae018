"""How a model runs its sections on TensorFlow: by the engine, in a graph or eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...engine import in_vectorized_map, target_now, trace_context, warn_vectorized
from ...engine.calls import ObjectState, ProgramCache
from ...engine.graph import tensor_specs, with_body_passes
from ...keras_backend.gradient_demand import gradient_may_be_asked
from ...layers.masks_and_losses import append_masks
from ...seams.keras.call_context import current_training
from ...seams.keras.graph import tracked_layers
from ...seams.keras.layers import backend_variable
from ...seams.tensorflow.gradients import has_tangents, is_recorded
from ..keras_graph.call_graph import Graph
from ..keras_graph.fingerprint import Level
from .executor import ExecutionPlan, execute
from .partition_cache import PartitionCache
from .replicated_training import ReplicatedTraining
from .saving_advice import warn_without_savings


class SectionRunner(ReplicatedTraining):
    """A base class of ``Model``, before the model's class: it runs the sections of the graph."""

    _levels: int
    _scan_layers: bool
    _plan: ExecutionPlan | None
    _is_advised: bool
    plan: Any

    def _prepare_runs(self) -> None:
        self._eager_partitions = ProgramCache()
        self._attributes = ObjectState(tuple(tracked_layers(self)))
        self.adopt_weights_strategy()

    def _layers_version(self) -> int:
        return self._attributes.version()

    def _plan_of(self, graph: Graph) -> ExecutionPlan:
        level = Level.SAME_STRUCTURE if self._scan_layers else Level.SAME_VARIABLES
        return ExecutionPlan.of(graph, self._levels, level=level)

    def _prepared(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model's ``call`` with the passes that loops around it need."""
        return with_body_passes(call, target_now())

    def _is_recomputed(self, flat: Sequence[Any]) -> bool:
        """Whether the call on the inputs ``flat`` goes by sections. Warns where it cannot."""
        if not all(isinstance(value, tf.Tensor) for value in flat):
            return False
        if self._plan is None or self.plan.is_plain or not gradient_may_be_asked():
            return False
        if in_vectorized_map():
            warn_vectorized(f"the model {self.name!r}")
            return False
        return not has_tangents(
            [*flat, *(backend_variable(v).handle for v in self.trainable_variables)]
        )

    def _run_sections(self, plan: ExecutionPlan, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if tf.executing_eagerly():
            return self._run_sections_eagerly(plan, flat)
        partitions = PartitionCache()
        outputs = execute(plan, flat, partitions)
        # Keras traces models for other reasons too, but only to train with ``training=True``.
        if not self._is_advised and current_training() is True:
            self._is_advised = warn_without_savings(self, plan, partitions)
        return outputs

    def _run_sections_eagerly(
        self, plan: ExecutionPlan, flat: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Run each section as compiled functions, which are kept for the next call of this kind."""
        tensors, masked = append_masks(flat)
        signature = tuple(tensor_specs(tensors))
        # Sections do not differentiate by what no tape watches.
        watched = tuple(map(is_recorded, flat))
        results: list[list[tf.Tensor]] = []

        def make() -> PartitionCache:
            partitions = PartitionCache()
            results.append(execute(plan, flat, partitions))
            return partitions

        # What is around has ``training`` in it.
        partitions = self._eager_partitions.get(
            lambda: (masked, watched, signature, trace_context()),
            make,
            uses=tuple(tracked_layers(self)),
            name=self.name,
        )
        return results[0] if results else execute(plan, flat, partitions)
