"""``Model``: a Keras functional model that recomputes the sections between its checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras

from ...errors import InvalidArgumentError, RecomputeWarning
from ...keras_backend import require
from ...layers.recomputation_checkpoint import obey_checkpoints
from ...seams.keras.call_context import current_training, pass_training
from ...seams.keras.graph import CloneObserver, GraphRunner, call_nodes, functional_like_constructor
from ...seams.keras.training import JitChooser
from ...user_code import warn_user
from ..execution.jit_choice import takes_jit
from ..execution.section_runner import SectionRunner
from ..keras_graph.call_graph import Call, as_noted, checkpoints_in
from .checkpoint_placement import (
    ENDS,
    CheckpointPlacement,
    as_rounds,
    inherited_placement,
    placement_of_rounds,
)
from .clone_mapping import is_cloned, layers_for_layers, leave_note, left_note
from .inserted_checkpoints import without_inserted

# The note on the outputs of a run of a model's graph on symbolic inputs: the number of calls, and
# what the model takes over that consists of these.
_RUN = "run"
# The entries of the configuration that are ours.
_SAVED = ("recomputation_levels", "scan_layers", "is_open", "opens_sequential", "checkpoints")


@keras.saving.register_keras_serializable(package="keras_recompute")
class Model(CloneObserver, GraphRunner, JitChooser, SectionRunner, keras.Model):
    """A functional ``keras.Model`` whose training pass keeps only its checkpoints.

    ``Model(inputs, outputs)`` takes what ``keras.Model`` takes, and the values of its properties
    ``recomputation_levels`` and ``scan_layers``. Checkpoints are ``RecomputationCheckpoint``
    layers, and the outputs of layers that ``checkpointed`` or ``plan`` chose; ``plan.checkpoints``
    has the names of both. A ``Model`` that is built on ``output``, such as a new head, has them
    too. Where a gradient may be asked, whatever ``training`` is, the sections between checkpoints
    are recomputed in the backward pass. What lies after the last checkpoint is not recomputed.
    Equal sections become one loop. Values and gradients are those of the plain model, and so are
    dropout and statistics.

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
    _placement = CheckpointPlacement()
    # None in an object of a derived class whose constructor is not this one.
    _plan: Any = None
    _plan_as_noted: Any = None  # of calls without ``training``
    _planned_for: Any = None
    # Whether it is known, and was said, if no section saves memory.
    _is_advised = False

    def __init__(
        self,
        *args: Any,
        recomputation_levels: int | None = None,
        scan_layers: bool | None = None,
        **kwargs: Any,
    ) -> None:
        outputs = keras.tree.flatten(kwargs.get("outputs", args[1:2]))
        # Read first: Keras makes new tensors where inputs are results of layers.
        run = left_note(outputs[0], _RUN) if outputs else None
        super().__init__(*args, **kwargs)
        if run is not None and run[0] == len(call_nodes(self)):
            _, self._levels, self._scan_layers, placement = run
        else:
            placement = inherited_placement(self)
        self._place_checkpoints(placement)
        if recomputation_levels is not None:
            self.recomputation_levels = recomputation_levels
        if scan_layers is not None:
            self.scan_layers = scan_layers

    def _place_checkpoints(self, placement: CheckpointPlacement) -> None:
        """Recompute by ``placement``, and by the checkpoint layers of the graph."""
        self._placement, self._is_advised = placement, False
        self._note_checkpoints()
        self._replan()

    def _note_checkpoints(self) -> None:
        """Note the checkpoints for a model that is built on the outputs, such as a new head."""
        placement = self._placement
        note = (placement.is_open, placement.ends(self)) if placement.positions else None
        leave_note(self.outputs, ENDS, note)
        leave_note(self.outputs, _RUN, None)

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
        if levels > 1:
            require("Model.recomputation_levels")
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

        On JAX sections between checkpoints become loops, where their traces are equal, and without
        checkpoints blocks of layers that repeat themselves. They may draw random numbers and keep
        statistics, but have no masks. A step holds the weights and their gradients once more.
        Sections that call the same layers, as on parts of a sequence, are loops there without this
        option too.
        """
        return self._scan_layers

    @scan_layers.setter
    def scan_layers(self, scan: bool) -> None:
        if not isinstance(scan, bool):
            raise InvalidArgumentError(f"scan_layers is {scan!r}: give True or False")
        if scan:
            require("Model.scan_layers")
        self._scan_layers = scan
        self._replan()

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._saved_options()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Model:
        config, saved = dict(config), {}
        for name in _SAVED:
            if name in config:
                saved[name] = config.pop(name)
        model = without_inserted(super().from_config(config, custom_objects=custom_objects))
        model._take_saved_options(**saved)
        return model

    def _saved_options(self) -> dict[str, Any]:
        """Return what the model holds beside its graph, as it is saved."""
        ours = {"recomputation_levels": self._levels, "scan_layers": self._scan_layers}
        return {**ours, **as_rounds(self._placement)}

    def _take_saved_options(
        self,
        recomputation_levels: int = 1,
        scan_layers: bool = False,
        is_open: bool = False,
        opens_sequential: bool = False,
        checkpoints: Sequence[Sequence[int]] = (),
    ) -> None:
        if checkpoints:
            self._place_checkpoints(
                placement_of_rounds(is_open, checkpoints, opens_sequential=opens_sequential)
            )
        if recomputation_levels != self._levels:
            self.recomputation_levels = recomputation_levels
        if scan_layers != self._scan_layers:
            self.scan_layers = scan_layers

    @property
    def plan(self) -> Any:
        """What the training pass runs: the layers of each section and the sections of each loop."""
        # Layers that were equal but for their weights may not be so any more.
        if self._scan_layers and self._planned_for != self._layers_version():
            self._make_plans()
        return self._plan

    def _plan_for(self, training: Any) -> Any:
        """Return the plan of a call with ``training``: without, layers have what Keras noted."""
        plan = self.plan
        if training is not None:
            return plan
        if self._plan_as_noted is None:
            graph = self._placement.graph_of(self)
            noted = as_noted(graph)
            self._plan_as_noted = plan if noted is graph else self._plan_of(noted)
        return self._plan_as_noted

    def _replan(self) -> None:
        self._prepare_runs()
        self._make_plans()
        self.train_function = None

    def _make_plans(self) -> None:
        self._planned_for, self._plan_as_noted = self._layers_version(), None
        self._plan = self._make_plan()

    def _make_plan(self) -> Any:
        graph = self._placement.graph_of(self)
        plan = self._plan_of(graph)
        marks = checkpoints_in(graph.calls)
        if marks and not plan.recomputes:
            warnings.warn(
                f"none of the {len(marks)} {named_checkpoints(marks)} of {self.name!r} saves "
                "memory. A checkpoint needs layers before it to recompute, and layers after it "
                "whose backward pass runs first",
                RecomputeWarning,
                stacklevel=4,
            )
        return plan

    def chooses_jit(self, losses_and_metrics: Any) -> bool:
        """Whether ``compile`` without ``jit_compile`` takes jit where Keras does not."""
        return takes_jit(self, losses_and_metrics)

    def call(self, inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        """Run the model as Keras does, by sections where a gradient may be asked."""
        with pass_training(training, self):
            run = self._prepared(super().call)
            return run(inputs, training=training, mask=mask, **kwargs)

    def run_by_graph(self, inputs: Any, plain: Callable[[], Any]) -> Any:
        """Return the outputs for ``inputs``, by sections where a gradient may be asked of them.

        Elsewhere by Keras's way through its graph, which ``plain`` is.
        """
        flat = keras.tree.flatten(inputs)
        if self._is_recomputed(flat):
            results = self._run_sections(self._plan_for(current_training()), flat)
            return keras.tree.pack_sequence_as(self.output, results)
        with obey_checkpoints():
            return plain()

    def note_clones(self, replacements: dict[Any, Any], outputs: Any) -> None:
        """Note what a clone takes over. Warn where Keras makes it of another class."""
        is_symbolic = isinstance(keras.tree.flatten(outputs)[0], keras.KerasTensor)
        if not is_symbolic or not layers_for_layers(replacements):
            return
        leave_options(outputs, self, self._placement)
        if is_cloned(replacements) and not functional_like_constructor(type(self)):
            warn_user(
                f"keras.models.clone_model makes a plain functional model of {self.name!r}, "
                f"because the constructor of {type(self).__name__} is its own: the clone "
                "recomputes nothing. Make it recompute by keras_recompute.Model(clone.input, "
                "clone.output)"
            )


def leave_options(outputs: Any, model: Any, placement: CheckpointPlacement) -> None:
    """Note on ``outputs`` of a run of ``model`` what a ``Model`` of the run takes over."""
    levels = getattr(model, "_levels", Model._levels)
    scan_layers = getattr(model, "_scan_layers", Model._scan_layers)
    leave_note(outputs, _RUN, (len(call_nodes(model)), levels, scan_layers, placement))


def placement_of(functional: keras.Model) -> CheckpointPlacement:
    """Return where the checkpoints of a functional model are that are no layers."""
    return functional._placement if isinstance(functional, Model) else CheckpointPlacement()


def named_checkpoints(marks: Sequence[Call]) -> str:
    """Return what messages call the checkpoints ``marks``, as the user made them."""
    are_layers = all(call.is_checkpoint_layer for call in marks)
    return "RecomputationCheckpoint layers" if are_layers else "checkpoints"
