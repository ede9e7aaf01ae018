"""``ipu_tensorflow_addons.keras.layers``: the layers that Graphcore adds."""

from __future__ import annotations

from ...layers.recomputation_checkpoint import RecomputationCheckpoint
from ..layers.assume_equal import AssumeEqualAcrossReplicas
from ..layers.dropout import Dropout
from ..layers.normalization import GroupNormalization, InstanceNormalization, LayerNormalization
from ..layers.popnn import PopnnGRU, PopnnLSTM
from ..layers.serialized import Embedding, SerialDense

LSTM, GRU = PopnnLSTM, PopnnGRU
Dense = SerialDense
GroupNorm, InstanceNorm, LayerNorm = GroupNormalization, InstanceNormalization, LayerNormalization

__all__ = [
    "GRU",
    "LSTM",
    "AssumeEqualAcrossReplicas",
    "Dense",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "GroupNormalization",
    "InstanceNorm",
    "InstanceNormalization",
    "LayerNorm",
    "LayerNormalization",
    "PopnnGRU",
    "PopnnLSTM",
    "RecomputationCheckpoint",
    "SerialDense",
]
