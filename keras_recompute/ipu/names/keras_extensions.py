"""``keras.ipu.extensions``: the classes of models made in a strategy's scope.

It also has the names of ``keras.ipu``.
"""

from __future__ import annotations

from ..models.pipelined import PipelinedModel as FunctionalExtension
from ..models.pipelined import PipelinedSequential as SequentialExtension
from ..models.pipelined import PipelinedSubclass as ModelExtension
from .keras_ipu import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    PipelineStage,
    ReplicatedMetricReductionMethod,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)

__all__ = [
    "FunctionalExtension",
    "FunctionalLayerPipelineStageAssignment",
    "FunctionalNestedModelPipelineStageAssignment",
    "ModelExtension",
    "ModelLayerPipelineStageAssignment",
    "NestedModelPipelineStageAssignment",
    "PipelineStage",
    "ReplicatedMetricReductionMethod",
    "SequentialExtension",
    "SequentialLayerPipelineStageAssignment",
    "SequentialNestedModelPipelineStageAssignment",
]
