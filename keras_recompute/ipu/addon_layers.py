"""``ipu_tensorflow_addons.keras.layers``: the layers that Graphcore adds."""

from __future__ import annotations

from ..layers.recomputation_checkpoint import RecomputationCheckpoint
from .popnn import PopnnGRU, PopnnLSTM

LSTM, GRU = PopnnLSTM, PopnnGRU

__all__ = ["GRU", "LSTM", "PopnnGRU", "PopnnLSTM", "RecomputationCheckpoint"]
