"""Models of files of earlier versions, whose checkpoints were layers that ``checkpointed`` put in.

Up to 0.2.0 such layers stood in the graph. They counted as nothing in the order of the model's
layers, by which files list weights and optimizers theirs. So they are taken out of the graph, and
it is as if ``checkpointed`` had made the model now.
"""

from __future__ import annotations

from typing import Any

import keras

from ...layers.recomputation_checkpoint import RecomputationCheckpoint
from ...seams.keras.graph import run_graph
from .checkpoint_placement import placement_of_ends


def without_inserted(model: Any) -> Any:
    """Return a loaded ``model`` with checkpoints beside the graph in place of inserted layers."""
    if not any(map(_was_inserted, model.operations)):
        return model
    ends: dict[int, keras.KerasTensor] = {}

    def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        if not _was_inserted(operation):
            return operation(*args, **kwargs)
        ends.update((id(tensor), tensor) for tensor in keras.tree.flatten(args))
        return args[0]

    outputs = run_graph(model, model.inputs, call)
    # Not a copy: that would track layers in the order of ``model``, where inserted ones count.
    new = type(model)(model.input, outputs, name=model.name)
    if not model.trainable:
        new.trainable = False
    new._place_checkpoints(placement_of_ends(new, ends.keys(), is_open=False))
    return new


def _was_inserted(operation: Any) -> bool:
    return isinstance(operation, RecomputationCheckpoint) and operation.was_inserted
