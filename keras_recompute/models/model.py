"""``Model``: a Keras functional model that recomputes the sections between its checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras

from ..errors import InvalidArgumentError, RecomputeWarning
from ..keras_backend import require
from ..layers.recomputation_checkpoint import obey_checkpoints
from ..seams.keras.call_context import pass_training
from ..seams.keras.graph import (
    CloneObserver,
    GraphRunner,
    functional_like_constructor,
    set_operation_order,
)
from ..user_code import warn_user
from .call_graph import Graph, checkpoints_in, read_graph
from .clone_mapping import is_cloned
from .layer_order import order_ignoring_inserted
from .section_runner import SectionRunner

# An attribute of a clone's outputs, since Keras hands over nothing else.
_OPTIONS = "_keras_recompute_options"


@keras.saving.register_keras_serializable(package="keras_recompute")
class Model(CloneObserver, GraphRunner, SectionRunner, keras.Model):
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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        set_operation_order(self, order_ignoring_inserted(self.operations, self.outputs))
        self._levels, self._scan_layers = max(
            getattr(t, _OPTIONS, (1, False)) for t in self.outputs
        )
        self._start()
        self._replan()

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

    def _make_plan(self) -> Any:
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
            run = self._prepared(super().call)
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
