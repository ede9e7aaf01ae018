"""Models whose checkpoints are stored beside the graph of layers, not in it.

They are made where a checkpoint cannot be a layer: of models of a class of their own, and of models
with models inside. Such a model lists the layers of the model that it was made from, and no
checkpoint. Its training pass runs that model's graph with submodels inlined and checkpoints
inserted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import keras

from ..layers.mixed_class import SAVED_AS, SavedAsPlain, class_config, original_class
from .call_graph import Graph, read_graph
from .clone_mapping import check_class_of_clone
from .model import Model
from .shared_copy import copy_sharing_weights
from .submodel_inlining import inline_submodels, insert_checkpoints

# An attribute of a clone's outputs, since Keras hands over nothing else.
_PLACES = "_keras_recompute_places"
# Where the checkpoints are, one after the other: whether models inside are inlined, and the
# positions of the calls that they stand behind then.
CheckpointPlacement = tuple[bool, tuple[tuple[int, ...], ...]]


@keras.saving.register_keras_serializable(package="keras_recompute")
class PlacedModel(SavedAsPlain, Model):
    """A ``Model`` of the class of another model, whose checkpoints are no layers.

    ``plan`` has its sections. Its configuration is that of the other model's class, with an entry
    that says where the checkpoints are.
    """

    _placement: CheckpointPlacement = (False, ())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        places = getattr(self.outputs[0], _PLACES, None)
        if places is not None:
            self._place_checkpoints(places)

    def _place_checkpoints(self, places: CheckpointPlacement) -> None:
        self._placement = places
        self.__dict__.pop("_graph_to_cut", None)
        self._replan()

    @functools.cached_property
    def _graph_to_cut(self) -> Graph:
        is_open, rounds = self._placement
        graph = inline_submodels(self) if is_open else read_graph(self)
        return functools.reduce(insert_checkpoints, rounds, graph)

    def note_clones(
        self,
        replacements: dict[Any, Any],
        outputs: Any,  # noqa: ARG002  # as in ``Model``
    ) -> None:
        check_class_of_clone(self, replacements, what="anything")

    def run_by_graph(self, inputs: Any, plain: Callable[[], Any]) -> Any:
        outputs = super().run_by_graph(inputs, plain)
        for output in keras.tree.flatten(outputs):
            if isinstance(output, keras.KerasTensor):
                setattr(output, _PLACES, self._placement)
        return outputs

    def get_config(self) -> dict[str, Any]:
        is_open, rounds = self._placement
        ours = {"is_open": is_open, "checkpoints": [list(places) for places in rounds]}
        ours.update(recomputation_levels=self._levels, scan_layers=self._scan_layers)
        return {
            **self.plain_config(),
            SAVED_AS: {"class": class_config(original_class(type(self))), **ours},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        ours = config.pop(SAVED_AS, None)
        # That of the model's own class: it has no checkpoints.
        if ours is None:
            own: Any = original_class(cls)
            return own.from_config(config)
        plain = keras.saving.deserialize_keras_object(
            {**ours["class"], "config": config}, custom_objects=custom_objects
        )
        model = with_placement(plain, (ours["is_open"], tuple(map(tuple, ours["checkpoints"]))))
        model.recomputation_levels = ours["recomputation_levels"]
        if ours["scan_layers"]:
            model.scan_layers = True
        return model


def with_placement(model: keras.Model, places: CheckpointPlacement) -> PlacedModel:
    """Return a functional ``model`` as one of its own class, with checkpoints at ``places``."""
    new = copy_sharing_weights(model, PlacedModel)
    new._start()
    new._place_checkpoints(places)
    return new


def extended_placement(
    model: keras.Model, positions: Collection[int], *, is_open: bool
) -> CheckpointPlacement:
    """Return the placement of ``model``, or a new one, with checkpoints at ``positions`` added."""
    is_open, before = model._placement if isinstance(model, PlacedModel) else (is_open, ())
    return is_open, (*before, tuple(sorted(positions)))
