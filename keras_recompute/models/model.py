"""``Model``: a Keras functional model that recomputes the sections between its checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..engine.custom_vjp import in_vectorized_map
from ..engine.dataflow import tensor_specs
from ..engine.diagnostics import warn_vectorized
from ..engine.gradient_demand import gradient_may_be_asked
from ..engine.object_state import ObjectState
from ..engine.passes import target_now
from ..engine.program_cache import ProgramCache
from ..engine.source_location import warn_user
from ..engine.target_ops import with_body_passes
from ..engine.trace_context import trace_context
from ..errors import InvalidArgumentError, RecomputeWarning
from ..layers.recomputation_checkpoint import obey_checkpoints
from ..seams.keras.call_context import current_training, pass_training
from ..seams.keras.graph import (
    CloneObserver,
    GraphRunner,
    functional_like_constructor,
    set_operation_order,
    tracked_layers,
)
from ..seams.keras.layers import backend_variable
from ..seams.tensorflow.gradients import has_tangents, is_recorded
from .call_graph import Graph, as_noted, checkpoints_in, read_graph
from .clone_mapping import is_cloned
from .execution import ExecutionPlan, execute
from .fingerprint import Level
from .layer_order import order_ignoring_inserted
from .partition_cache import PartitionCache
from .replicated_training import ReplicatedTraining
from .saving_advice import warn_without_savings
from .side_outputs import append_masks

# An attribute of a clone's outputs, since Keras hands over nothing else.
_OPTIONS = "_keras_recompute_options"


@keras.saving.register_keras_serializable(package="keras_recompute")
class Model(CloneObserver, GraphRunner, ReplicatedTraining, keras.Model):
    """A functional ``keras.Model`` whose training pass keeps only its checkpoints.

    ``Model(inputs, outputs)`` takes what ``keras.Model`` takes. Where a gradient may be asked,
    whatever ``training`` is, the sections between ``RecomputationCheckpoint`` layers are recomputed
    in the backward pass. What lies after the last checkpoint is not recomputed. Equal sections
    become one loop. Values and gradients are those of the plain model, and so are dropout and
    statistics.

    Inference is the plain model's: calls outside of a tape, ``evaluate``, ``predict``, ``export``.
    A ``tf.function`` that is traced outside of a tape may be called under one later. So it is
    written with sections; for inference alone call the plain model in it. Warns with a
    RecomputeWarning where there are checkpoints but none saves memory.

    Examples:
        >>> dense = keras.layers.Dense(8, "tanh")
        >>> x = inputs = keras.Input((8,))
        >>> for _ in range(3):
        ...     x = kr.RecomputationCheckpoint()(dense(x))
        >>> model = kr.Model(inputs, keras.layers.Dense(1)(x))
        >>> [name for name, _ in model.plan.named_steps]  # three equal sections are one loop
        ['sections-0-2', '']
        >>> model.compile("sgd", "mse", jit_compile=True)
        >>> history = model.fit(np.ones((4, 8)), np.ones(4), verbose=0)
    """

    _levels, _scan_layers = 1, False
    _plan_as_noted: ExecutionPlan | None = None
    # Whether it is known, and was said, if no section saves memory.
    _is_advised = False
    # The number of the layers' attributes; before there are plans, -1.
    _planned_for = -1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        set_operation_order(self, order_ignoring_inserted(self.operations, self.outputs))
        self._levels, self._scan_layers = max(
            getattr(t, _OPTIONS, (1, False)) for t in self.outputs
        )
        self._start()
        self._replan()

    def _start(self) -> None:
        self._eager_partitions = ProgramCache()
        self._attributes = ObjectState(tuple(tracked_layers(self)))
        self.adopt_weights_strategy()

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

    @property
    def recomputation_levels(self) -> int:
        """The number of loops that equal sections are nested in.

        Each level takes less memory and one more forward pass. Sections are grouped as their number
        divides: 32 as 8 groups of 4, a prime number not at all. The last section of a model is not
        among them, because it is not recomputed.
        """
        return self._levels

    @recomputation_levels.setter
    def recomputation_levels(self, levels: int) -> None:
        if isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
            raise InvalidArgumentError(
                f"recomputation_levels is {levels!r}, and it is a number of nested loops: give a "
                "whole number from 1 on"
            )
        self._levels = levels
        self._replan()

    @property
    def scan_layers(self) -> bool:
        """Whether sections whose layers differ only in the values of their weights become one loop.

        So do such blocks inside a section, or in a model without checkpoints. There nothing more is
        recomputed, except for elementwise functions. Then the number of blocks has no effect on the
        size of the program, the time to compile it, and what the process keeps of it. Outside XLA,
        a step holds their weights once more.

        Layers are equal if they are of one class and hold the same: attributes by value, functions
        by their code and what it closes over, unknown objects by identity. Layers that draw random
        numbers or keep statistics are left out.
        """
        return self._scan_layers

    @scan_layers.setter
    def scan_layers(self, scan: bool) -> None:
        if not isinstance(scan, bool):
            raise InvalidArgumentError(f"scan_layers is {scan!r}: give True or False")
        self._scan_layers = scan
        self._replan()

    def _replan(self) -> None:
        self._planned_for, self._plan = self._attributes.version(), self._make_plan()
        self._plan_as_noted = None
        self._eager_partitions = ProgramCache()
        self.train_function = None

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "recomputation_levels": self._levels,
            "scan_layers": self._scan_layers,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Model:
        config = dict(config)
        levels, scan = config.pop("recomputation_levels", 1), config.pop("scan_layers", False)
        model = super().from_config(config, custom_objects=custom_objects)
        model.recomputation_levels = levels
        if scan != model.scan_layers:
            model.scan_layers = scan
        return model

    @property
    def _graph_to_cut(self) -> Graph:
        """What is cut into sections."""
        return read_graph(self)

    def _plan_of(self, graph: Graph) -> ExecutionPlan:
        level = Level.SAME_STRUCTURE if self._scan_layers else Level.SAME_VARIABLES
        return ExecutionPlan.of(graph, self._levels, level=level)

    def _make_plan(self) -> ExecutionPlan:
        graph = self._graph_to_cut
        plan = self._plan_of(graph)
        marks = checkpoints_in(graph.calls)
        if marks and not plan.recomputes:
            warnings.warn(
                f"none of the {len(marks)} RecomputationCheckpoint layers of {self.name!r} saves "
                "memory. A checkpoint needs layers before it to recompute, and layers after it "
                "whose backward pass runs first",
                RecomputeWarning,
                stacklevel=3,
            )
        return plan

    def call(self, inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        """Run the model as Keras does, by sections where a gradient may be asked."""
        with pass_training(training, self):
            run = with_body_passes(super().call, target_now())
            return run(inputs, training=training, mask=mask, **kwargs)

    def run_by_graph(self, inputs: Any, plain: Callable[[], Any]) -> Any:
        """Return the outputs for ``inputs``, by sections where a gradient may be asked of them.

        Elsewhere by Keras's way through its graph, which ``plain`` is.
        """
        flat = keras.tree.flatten(inputs)
        if self._is_recomputed(flat):
            return keras.tree.pack_sequence_as(self.output, self._run_sections(flat))
        with obey_checkpoints():
            outputs = plain()
        for output in keras.tree.flatten(outputs):
            # keras.models.clone_model constructs the clone on these
            if isinstance(output, keras.KerasTensor):
                setattr(output, _OPTIONS, (self._levels, self._scan_layers))
        return outputs

    def note_clones(self, replacements: dict[Any, Any], outputs: Any) -> None:
        """Warn where Keras makes the clone of another class, which ignores checkpoints."""
        is_symbolic = isinstance(keras.tree.flatten(outputs)[0], keras.KerasTensor)
        if is_symbolic and is_cloned(replacements) and not functional_like_constructor(type(self)):
            warn_user(
                f"keras.models.clone_model makes a plain functional model of {self.name!r}, "
                f"because the constructor of {type(self).__name__} is its own: the clone "
                "recomputes nothing. Make it recompute by keras_recompute.Model(clone.input, "
                "clone.output)"
            )

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
