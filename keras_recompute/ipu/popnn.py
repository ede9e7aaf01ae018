"""``ipu_tensorflow_addons.keras.layers``: Graphcore's recurrent layers over ours."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ..layers.recomputation_checkpoint import RecomputationCheckpoint
from ..layers.recurrent import GRU, LSTM

__all__ = ["GRU", "LSTM", "PopnnGRU", "PopnnLSTM", "RecomputationCheckpoint"]


class _Popnn(keras.layers.RNN):
    """Graphcore's arguments for tiles and number formats: accepted and kept in the config, without effect here."""

    def __init__(
        self,
        units: int,
        *,
        partials_dtype: Any = tf.float32,
        seed: int | None = None,
        dropout_seed: int | None = None,
        time_major: bool = False,
        options: dict[str, Any] | None = None,
        options_bwd: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        for name, wanted in (
            ("use_bias", True),
            ("kernel_regularizer", None),
            ("recurrent_regularizer", None),
            ("bias_regularizer", None),
            ("activity_regularizer", None),
            ("kernel_constraint", None),
            ("recurrent_constraint", None),
            ("bias_constraint", None),
            ("recurrent_dropout", 0.0),
            ("go_backwards", False),
            ("unroll", False),
        ):
            if kwargs.get(name, wanted) != wanted:
                raise ValueError(f"{type(self).__name__} does not support {name}={kwargs[name]!r}, only {wanted!r}")
        if time_major:
            raise ValueError(f"{type(self).__name__}: time_major=True is not emulated yet; give sequences batch first")
        super().__init__(units, seed=dropout_seed if dropout_seed is not None else seed, **kwargs)
        self.popnn_options = {
            "partials_dtype": tf.as_dtype(partials_dtype).name,
            "dropout_seed": dropout_seed,
            "options": options,
            "options_bwd": options_bwd,
        }

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.popnn_options}


@keras.saving.register_keras_serializable(package="keras_recompute")
class PopnnLSTM(_Popnn, LSTM):
    """Graphcore's LSTM (contract section 9) with the weights and results of ``keras.layers.LSTM``.

    Raises ValueError for what popnn does not do: ``use_bias=False``, regularisers, constraints, ``recurrent_dropout``,
    ``go_backwards``, ``unroll``.
    """


@keras.saving.register_keras_serializable(package="keras_recompute")
class PopnnGRU(_Popnn, GRU):
    """Graphcore's GRU (contract section 9); refusals as for ``PopnnLSTM``."""
