"""Models with checkpoints of another class than ours, such as KerasHub's backbones and tasks."""

from __future__ import annotations

from typing import Any

import keras

from ...layers.mixed_class import OURS, original_class
from ...seams.keras.construction import copy_attributes
from ...seams.keras.graph import Functional, run_graph
from ..keras_graph.shared_copy import SavedCopy, copy_sharing_weights
from .checkpoint_placement import CheckpointPlacement
from .clone_mapping import check_class_of_clone
from .model import Model, leave_options


@keras.saving.register_keras_serializable(package="keras_recompute")
class PlacedModel(SavedCopy, Model):
    """A ``Model`` of the class of another model."""

    def _note_checkpoints(self) -> None:
        """Note nothing: the other model has the same outputs."""

    def note_clones(self, replacements: dict[Any, Any], outputs: Any) -> None:
        check_class_of_clone(self, replacements, what="anything")
        super().note_clones(replacements, outputs)

    def _saved_changes(self) -> dict[str, Any]:
        return self._saved_options()

    @classmethod
    def _with_changes(cls, plain: Any, changes: dict[str, Any]) -> Any:
        new = with_placement(plain, CheckpointPlacement())
        new._take_saved_options(**changes)
        return new


def with_placement(model: keras.Model, placement: CheckpointPlacement) -> Model:
    """Return a functional ``model`` with checkpoints at ``placement``.

    It is a ``Model``; where ``model`` is of a class of its own, it is of that class too.
    """
    if original_class(type(model)) in (Functional, Model):
        # By outputs of its own a model that is built on them is known to have these checkpoints.
        outputs = run_graph(model, model.inputs)
        leave_options(outputs, model, placement)
        made = Model(model.input, outputs, name=model.name)
        copy_attributes(model, made, without=OURS)
        return made
    new: Model = copy_sharing_weights(model, PlacedModel)
    new._place_checkpoints(placement)
    return new
