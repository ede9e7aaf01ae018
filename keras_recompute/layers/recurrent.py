"""Keras's LSTM and GRU on fused recurrences: the same API, weights and results in less memory."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ..errors import UnsupportedError
from .fused_gru import gru
from .fused_lstm import lstm


class _Fused(keras.layers.RNN):
    """Mixin before a Keras recurrent layer that replaces its loop by a fused recurrence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Keras disables jit because of cuDNN, which is not used here.
        self.supports_jit = True
        self._check_arguments()

    def _check_arguments(self) -> None:
        """Raise UnsupportedError for arguments that the fused recurrence does not support."""
        cell = self.cell
        for name, value, wanted in (
            ("activation", keras.activations.serialize(cell.activation), "tanh"),
            (
                "recurrent_activation",
                keras.activations.serialize(cell.recurrent_activation),
                "sigmoid",
            ),
            ("recurrent_dropout", self.recurrent_dropout, 0),
            ("unroll", self.unroll, False),
        ):
            if value != wanted:
                raise UnsupportedError(
                    f"{type(self).__name__} {self.name!r}: {name}={value!r} is not supported, "
                    f"only {name}={wanted!r}, because the recurrence is one fused operation. Use "
                    f"keras.layers.{type(self).__name__} for it."
                )

    def inner_loop(
        self, sequences: tf.Tensor, initial_state: Any, mask: Any, training: bool = False
    ) -> Any:
        """Run the recurrence on prepared states, as Keras's layer calls it.

        Takes sequences ``(batch, time, features)`` and states ``(batch, units)``. Returns the last
        output ``(batch, units)``, all outputs ``(batch, time, units)`` and the last states. Raises
        UnsupportedError for a mask and for an unknown number of timesteps.
        """
        if any(m is not None for m in tf.nest.flatten(mask)):
            raise UnsupportedError(
                f"{type(self).__name__} {self.name!r} was given a mask, which the fused "
                f"recurrence does not apply. Use keras.layers.{type(self).__name__}, or sequences "
                "of full length."
            )
        if sequences.shape[1] is None:
            raise UnsupportedError(
                f"{type(self).__name__} {self.name!r} needs a known number of timesteps, and its "
                f"input is {tuple(sequences.shape)}. Give keras.Input a fixed length."
            )
        if training and self.dropout:
            # One mask for all timesteps, as Keras draws it.
            sequences = sequences * self.cell.get_dropout_mask(sequences[:, 0, :])[:, None, :]
        if self.go_backwards:
            sequences = tf.reverse(sequences, axis=[1])
        # A stateful layer passes variables.
        states = list(map(tf.convert_to_tensor, initial_state))
        outputs, *states = self._recurrence(sequences, states)
        return outputs[:, -1], outputs, states

    def _weights(self, bias_shape: tuple[int, ...]) -> list[tf.Tensor]:
        cell, dtype = self.cell, self.compute_dtype
        bias = tf.convert_to_tensor(cell.bias) if cell.use_bias else tf.zeros(bias_shape, dtype)
        return [tf.cast(w, dtype) for w in (cell.kernel, cell.recurrent_kernel, bias)]

    def _recurrence(self, sequences: tf.Tensor, states: Any) -> tuple[tf.Tensor, ...]:
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_recompute")
class LSTM(_Fused, keras.layers.LSTM):
    """``keras.layers.LSTM`` with a fused forward pass and a hand-written backward pass.

    Arguments, weights (kernel, recurrent kernel, bias; gates in the order input, forget, candidate,
    output) and results are Keras's. Input ``(batch, time, features)`` with a fixed number of
    timesteps.

    Raises:
        UnsupportedError: Other activations than tanh and sigmoid, ``recurrent_dropout``,
            ``unroll``, or a mask.

    Examples:
        >>> layer = kr.LSTM(4, return_sequences=True, return_state=True)
        >>> outputs, h, c = layer(keras.random.normal((2, 16, 8)))
        >>> tuple(outputs.shape), tuple(h.shape), tuple(c.shape)
        ((2, 16, 4), (2, 4), (2, 4))
    """

    def _recurrence(self, sequences: tf.Tensor, states: Any) -> tuple[tf.Tensor, ...]:
        return lstm(sequences, states[0], states[1], *self._weights((4 * self.units,)))


@keras.saving.register_keras_serializable(package="keras_recompute")
class GRU(_Fused, keras.layers.GRU):
    """``keras.layers.GRU`` with a fused forward pass and a hand-written backward pass.

    Arguments, weights (kernel, recurrent kernel, bias; gates in the order update, reset, candidate)
    and results are Keras's, with ``reset_after`` and without. Input and errors as for ``LSTM``.

    Examples:
        >>> tuple(kr.GRU(4, return_sequences=True)(keras.random.normal((2, 16, 8))).shape)
        (2, 16, 4)
    """

    def _recurrence(self, sequences: tf.Tensor, states: Any) -> tuple[tf.Tensor, ...]:
        shape = (2, 3 * self.units) if self.reset_after else (3 * self.units,)
        return gru(sequences, states[0], *self._weights(shape), reset_after=self.reset_after)
