"""Keras's LSTM and GRU on fused recurrences: the same API, weights and results in less memory."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from ..errors import UnsupportedError
from .backend_scan import Tensor, Tensors, runs_on_cudnn
from .fused_gru import gru
from .fused_lstm import lstm


class _Fused(keras.layers.RNN):
    """Mixin before a Keras recurrent layer that replaces its loop by a fused recurrence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Keras disables jit because of cuDNN, which is used on JAX alone, and can be jitted there.
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
        self, sequences: Tensor, initial_state: Any, mask: Any, training: bool = False
    ) -> Any:
        """Run the recurrence on prepared states, as Keras's layer calls it.

        Takes sequences ``(batch, time, features)`` and states ``(batch, units)``. Returns the last
        output ``(batch, units)``, all outputs ``(batch, time, units)`` and the last states. Raises
        UnsupportedError for a mask, for an unknown number of timesteps, and for use_cudnn=True
        where it does not run on cuDNN.
        """
        if any(m is not None for m in keras.tree.flatten(mask)):
            raise UnsupportedError(
                f"{type(self).__name__} {self.name!r} was given a mask, which the fused "
                f"recurrence does not apply. Use keras.layers.{type(self).__name__}, or sequences "
                "of full length."
            )
        if self.use_cudnn and runs_on_cudnn(self):
            return super().inner_loop(sequences, initial_state, mask, training)
        if self.use_cudnn is True:
            raise UnsupportedError(
                f"{type(self).__name__} {self.name!r} has use_cudnn=True, and does not run on "
                "cuDNN here: on TensorFlow never; where there is a GPU on PyTorch, and on JAX an "
                f"LSTM of float32. Leave use_cudnn out, or use keras.layers.{type(self).__name__}."
            )
        if sequences.shape[1] is None:
            raise UnsupportedError(
                f"{type(self).__name__} {self.name!r} needs a known number of timesteps, and its "
                f"input is {tuple(sequences.shape)}. Give keras.Input a fixed length."
            )
        # Keras's stateless_call does not cast.
        sequences = ops.cast(sequences, self.compute_dtype)
        if training and self.dropout:
            # One mask for all timesteps, as Keras draws it.
            sequences = sequences * self.cell.get_dropout_mask(sequences[:, 0, :])[:, None, :]
        if self.go_backwards:
            sequences = ops.flip(sequences, axis=1)
        # A stateful layer passes variables, which convert_to_tensor leaves as they are.
        states = [ops.cast(state, self.compute_dtype) for state in initial_state]
        outputs, *states = self._recurrence(sequences, states)
        return outputs[:, -1], outputs, states

    def _weights(self, bias_shape: tuple[int, ...]) -> list[Tensor]:
        cell, dtype = self.cell, self.compute_dtype
        bias = cell.bias if cell.use_bias else ops.zeros(bias_shape, dtype)
        weights = map(ops.convert_to_tensor, (cell.kernel, cell.recurrent_kernel, bias))
        return [ops.cast(weight, dtype) for weight in weights]

    def _recurrence(self, sequences: Tensor, states: Any) -> Tensors:
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

    def _recurrence(self, sequences: Tensor, states: Any) -> Tensors:
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

    def _recurrence(self, sequences: Tensor, states: Any) -> Tensors:
        shape = (2, 3 * self.units) if self.reset_after else (3 * self.units,)
        return gru(sequences, states[0], *self._weights(shape), reset_after=self.reset_after)
