"""``tf.keras.ipu``: what Graphcore adds to Keras."""

from __future__ import annotations

from .assignment import (
    FunctionalLayerPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
)
from .extension import ReplicatedMetricReductionMethod
from .stages import PipelineStage

__all__ = [
    "FunctionalLayerPipelineStageAssignment",
    "ModelLayerPipelineStageAssignment",
    "PipelineStage",
    "ReplicatedMetricReductionMethod",
    "SequentialLayerPipelineStageAssignment",
]
