"""How a model runs its sections on TensorFlow: by the engine, in a graph or eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..engine import in_vectorized_map, target_now, trace_context, warn_vectorized
from ..engine.calls import ObjectState, ProgramCache
from ..engine.graph import tensor_specs, with_body_passes
from ..keras_backend.gradient_demand import gradient_may_be_asked
from ..seams.keras.call_context import current_training
from ..seams.keras.graph import tracked_layers
from ..seams.keras.layers import backend_variable
from ..seams.tensorflow.gradients import has_tangents, is_recorded
from .call_graph import Graph, as_noted
from .execution import ExecutionPlan, execute
from .fingerprint import Level
from .masks_and_losses import append_masks
from .partition_cache import PartitionCache
from .replicated_training import ReplicatedTraining
from .saving_advice import warn_without_savings


class SectionRunner(ReplicatedTraining):
    """A base class of ``Model``, before the model's class: it runs the sections of the graph."""

    _levels: int
    _scan_layers: bool
    _plan_as_noted: ExecutionPlan | None = None
    # Whether it is known, and was said, if no section saves memory.
    _is_advised = False
    # The number of the layers' attributes; before there are plans, -1.
    _planned_for = -1

    @property
    def _graph_to_cut(self) -> Graph:
        """What is cut into sections."""
        raise NotImplementedError

    def _start(self) -> None:
        self._eager_partitions = ProgramCache()
        self._attributes = ObjectState(tuple(tracked_layers(self)))
        self.adopt_weights_strategy()

    def _replan(self) -> None:
        self._planned_for, self._plan = self._attributes.version(), self._make_plan()
        self._plan_as_noted = None
        self._eager_partitions = ProgramCache()
        self.train_function = None

    @property
    def plan(self) -> ExecutionPlan:
        """What the training pass runs: the layers of each section and the sections of each loop."""
        # Layers that were equal but for their weights may not be so any more.
        if self._scan_layers and self._planned_for != self._attributes.version():
            self._planned_for, self._plan = self._attributes.version(), self._make_plan()
            self._plan_as_noted = None
        return self._plan

    def _plan_for(self, training: Any) -> ExecutionPlan:
        """Return the plan of a call with ``training``: without, layers have what Keras noted."""
        plan = self.plan
        if training is not None:
            return plan
        if self._plan_as_noted is None:
            graph = self._graph_to_cut
            noted = as_noted(graph)
            self._plan_as_noted = plan if noted is graph else self._plan_of(noted)
        return self._plan_as_noted

    def _plan_of(self, graph: Graph) -> ExecutionPlan:
        level = Level.SAME_STRUCTURE if self._scan_layers else Level.SAME_VARIABLES
        return ExecutionPlan.of(graph, self._levels, level=level)

    def _make_plan(self) -> ExecutionPlan:
        raise NotImplementedError

    def _prepared(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model's ``call`` with the passes that loops around it need."""
        return with_body_passes(call, target_now())

    def _is_recomputed(self, flat: Sequence[Any]) -> bool:
        """Whether the call on the inputs ``flat`` goes by sections. Warns where it cannot."""
        if not all(isinstance(value, tf.Tensor) for value in flat):
            return False
        # An object of a derived class may know no plan.
        if self._planned_for < 0:
            return False
        if self.plan.is_plain or not gradient_may_be_asked():
            return False
        if in_vectorized_map():
            warn_vectorized(f"the model {self.name!r}")
            return False
        return not has_tangents(
            [*flat, *(backend_variable(v).handle for v in self.trainable_variables)]
        )

    def _run_sections(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        plan = self._plan_for(current_training())
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
