"""``ipu_tensorflow_addons.keras.layers``: Graphcore's additional layers.

``Dense`` is Keras's: Graphcore's differs for 8-bit inputs only.
"""

from __future__ import annotations

from keras.layers import Dense

from ...layers.recomputation_checkpoint import RecomputationCheckpoint
from ..configuration.lazy_refusal import refuse_on_use
from ..layers.assume_equal import AssumeEqualAcrossReplicas
from ..layers.dropout import Dropout
from ..layers.normalization import GroupNormalization, InstanceNormalization, LayerNormalization
from ..layers.popnn import PopnnGRU, PopnnLSTM
from ..layers.serialized import Embedding, SerialDense

LSTM, GRU = PopnnLSTM, PopnnGRU
ConvertFromF8 = refuse_on_use("ipu_tensorflow_addons.keras.layers.ConvertFromF8")
ConvertToF8 = refuse_on_use("ipu_tensorflow_addons.keras.layers.ConvertToF8")
GroupNorm, InstanceNorm, LayerNorm = GroupNormalization, InstanceNormalization, LayerNormalization

__all__ = [
    "GRU",
    "LSTM",
    "AssumeEqualAcrossReplicas",
    "ConvertFromF8",
    "ConvertToF8",
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
