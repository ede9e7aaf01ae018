"""Graphcore's ``Dropout``, and the mask of a fixed seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


def dropout_seed_pair(seed: Any, who: str) -> tuple[int, int] | None:
    """Return ``seed`` as two ints, or None.

    Raises ValueError for anything else.
    """
    if seed is None:
        return None
    try:
        first, second = map(int, seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"{who}: seed={seed!r} is not two whole numbers: give two, such as [0, 1]"
        ) from None
    return first, second


def dropout_mask(shape: Any, dtype: Any, rate: float, seed: tuple[int, int]) -> tf.Tensor:
    """Return the dropout mask of ``seed``: 0 with probability ``rate``, else ``1 / (1 - rate)``."""
    drawn = tf.random.stateless_uniform(shape, seed)
    return tf.cast(drawn >= rate, dtype) * tf.cast(1 / (1 - rate), dtype)


@keras.saving.register_keras_serializable(package="keras_recompute")
class Dropout(keras.layers.Layer):
    """Set inputs to 0 with probability ``rate`` in training, and rescale the others.

    They are multiplied by ``1 / (1 - rate)``. ``noise_shape`` has 1 for a dimension that shares one
    draw. With ``seed``, two ints, every execution draws the same mask, as on an IPU. ``ref`` is
    accepted without effect, because masks are exact under recomputation in any case. Raises
    ValueError for a rate outside ``[0, 1)``, another seed, and a ``noise_shape`` that does not fit
    the inputs.
    """

    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int] | None = None,
        seed: Any = None,
        ref: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"Dropout(rate={rate!r}): give a rate from 0 on and below 1")
        self.rate, self.ref = rate, ref
        self.noise_shape = None if noise_shape is None else tuple(noise_shape)
        self.seed = dropout_seed_pair(seed, f"Dropout {self.name!r}")
        self.supports_masking = True
        self.built = True
        self._generator = keras.random.SeedGenerator()

    def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
        """Return ``inputs`` with dropout in training, else unchanged."""
        if self.noise_shape is not None and (
            len(self.noise_shape) != len(inputs.shape)
            or any(n not in (1, size) for n, size in zip(self.noise_shape, inputs.shape))
        ):
            raise ValueError(
                f"Dropout {self.name!r}: noise_shape={self.noise_shape} does not fit inputs of "
                f"shape {tuple(inputs.shape)}"
            )
        if not training or not self.rate:
            return inputs
        if self.seed is None:
            return keras.random.dropout(
                inputs, self.rate, noise_shape=self.noise_shape, seed=self._generator
            )
        shape = tf.shape(inputs) if self.noise_shape is None else self.noise_shape
        return inputs * dropout_mask(shape, inputs.dtype, self.rate, self.seed)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return Keras's config with the arguments."""
        own = {
            "rate": self.rate,
            "noise_shape": self.noise_shape,
            "seed": self.seed,
            "ref": self.ref,
        }
        return {**super().get_config(), **own}
