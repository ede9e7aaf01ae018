"""``tensorflow.python.ipu.pipelining_ops``: schedules, modes, and the checkpoint operation."""

from __future__ import annotations

import enum
from typing import Any

import keras

from ...engine import checkpoint_name
from ...layers.recomputation_checkpoint import RecomputationCheckpoint


class PipelineSchedule(enum.Enum):
    """The order in which stages and microbatches run (Graphcore: pipelined training)."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(enum.Enum):
    """What a pipeline stage recomputes, and when (Graphcore: pipelined training)."""

    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Return a nest of ``tensors`` marked as values to keep.

    Symbolic Keras tensors are marked by the layer.
    """
    if any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten(tensors)):
        return RecomputationCheckpoint(name=name)(tensors)
    return keras.tree.map_structure(
        lambda t: checkpoint_name(t, name or "recomputation_checkpoint"), tensors
    )
