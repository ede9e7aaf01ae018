"""``PopnnLSTM`` and ``PopnnGRU``: Graphcore's recurrent layers on top of ours.

The default activations, tanh and sigmoid, use the fused recurrences of ``layers.recurrent``. The
other activations that popnn knows use Keras's own loop, with more memory. Source: Graphcore,
addons.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf

from ...errors import UnsupportedError
from ...layers.recurrent import GRU, LSTM
from .dropout import dropout_mask, dropout_seed_pair

ACTIVATIONS = ("tanh", "relu", "softmax", "sigmoid", "hard_sigmoid")
RECURRENT_ACTIVATIONS = ("tanh", "softmax", "sigmoid", "hard_sigmoid")
# Argument -> the only value that popnn supports.
_ONLY = {
    "use_bias": True,
    "kernel_regularizer": None,
    "recurrent_regularizer": None,
    "bias_regularizer": None,
    "activity_regularizer": None,
    "kernel_constraint": None,
    "recurrent_constraint": None,
    "bias_constraint": None,
    "recurrent_dropout": 0.0,
    "go_backwards": False,
    "unroll": False,
}
# These tune Poplar's kernels: they are kept in the config, without effect.
_TUNING = (
    "partials_dtype",
    "available_memory_proportion_fwd",
    "available_memory_proportion_bwd",
    "options",
    "options_bwd",
)


def hard_sigmoid(x: Any) -> Any:
    """Return ``0.2 x + 0.5``, clipped to [0, 1], as in popnn and Keras 2.

    Keras 3's is ``x / 6 + 0.5``.
    """
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


_FUNCTIONS = {
    "tanh": keras.activations.tanh,
    "relu": keras.activations.relu,
    "softmax": keras.activations.softmax,
    "sigmoid": keras.activations.sigmoid,
    "hard_sigmoid": hard_sigmoid,
}


def _activation_name(layer: str, argument: str, value: Any, accepted: tuple[str, ...]) -> str:
    """Return the name of an activation, given as a name or as Keras's function.

    Raises ValueError unless it is ``accepted``.
    """
    name = value
    if callable(value):
        # Scripts pass Keras 3's hard_sigmoid, and mean popnn's.
        known = {**_FUNCTIONS, "hard_sigmoid": keras.activations.hard_sigmoid}
        name = next((name for name, function in known.items() if function is value), None)
    if name not in accepted:
        raise ValueError(f"{layer} has no {argument}={value!r}: use one of {', '.join(accepted)}")
    return str(name)


def _keras_initializer(initializer: Any) -> Any:
    """Return the Keras equivalent of a TensorFlow initializer, such as ``tf.constant_initializer``.

    It is the one that Keras reads from the initializer's config.
    """
    if type(initializer).__module__.startswith("tensorflow."):
        return keras.initializers.deserialize(keras.initializers.serialize(initializer))
    return initializer


class _Popnn(keras.layers.RNN):
    """The arguments and checks that both layers add to ours."""

    def __init__(
        self,
        units: int,
        *args: Any,
        seed: int | None = None,
        dropout_seed: Any = None,
        time_major: bool = False,
        **kwargs: Any,
    ) -> None:
        name, keras_layer = (
            type(self).__name__,
            keras.layers.LSTM if isinstance(self, LSTM) else keras.layers.GRU,
        )
        # Positional arguments are in the order of Keras's layer.
        kwargs.update(zip(list(inspect.signature(keras_layer).parameters)[1:], args))
        for argument, wanted in _ONLY.items():
            if kwargs.get(argument, wanted) != wanted:
                raise ValueError(
                    f"{name} does not support {argument}={kwargs[argument]!r}: give {wanted!r}, "
                    "or leave it out"
                )
        if kwargs.pop("implementation", 2) not in (1, 2):
            raise ValueError(f"{name} has one implementation: leave it out")
        names: dict[str, Any] = {}
        for argument, default, accepted in (
            ("activation", "tanh", ACTIVATIONS),
            ("recurrent_activation", "sigmoid", RECURRENT_ACTIVATIONS),
        ):
            names[argument] = _activation_name(
                name, argument, kwargs.get(argument, default), accepted
            )
            kwargs[argument] = _FUNCTIONS[names[argument]]
        dtype = keras.dtype_policies.get(
            kwargs.get("dtype") or keras.config.dtype_policy()
        ).variable_dtype
        if dtype not in ("float16", "float32"):
            raise ValueError(f"{name} has no dtype {dtype}: use float16 or float32")
        if kwargs.get("kernel_initializer") is None:
            kwargs["kernel_initializer"] = keras.initializers.GlorotUniform(seed)
        if kwargs.get("recurrent_initializer") is None:
            kwargs["recurrent_initializer"] = keras.initializers.Orthogonal(seed=seed)
        if kwargs.get("bias_initializer", "zeros") is None:
            kwargs["bias_initializer"] = "zeros"
        for argument in ("kernel_initializer", "recurrent_initializer", "bias_initializer"):
            kwargs[argument] = _keras_initializer(kwargs.get(argument, "zeros"))
        tuning = {argument: kwargs.pop(argument, None) for argument in _TUNING}
        tuning["partials_dtype"] = tf.as_dtype(tuning["partials_dtype"] or tf.float32).name
        # Set before Keras's constructor, which reads the config.
        self._dropout_pair = dropout_seed_pair(dropout_seed, name)
        super().__init__(units, seed=seed, **kwargs)
        self.time_major = time_major
        self.popnn_options = {
            **names,
            **tuning,
            "dropout_seed": self._dropout_pair,
            "time_major": time_major,
        }
        self._is_fused = names == {"activation": "tanh", "recurrent_activation": "sigmoid"}

    def _check_arguments(self) -> None:
        """Accept arguments that the fused recurrence lacks: Keras's loop handles them."""

    @property
    def kernel(self) -> Any:
        """Input weights, ``(features, gates * units)``."""
        return self.cell.kernel

    @property
    def recurrent_kernel(self) -> Any:
        """Recurrent weights, ``(units, gates * units)``."""
        return self.cell.recurrent_kernel

    @property
    def biases(self) -> Any:
        """Biases, ``(gates * units,)``; ``(2, gates * units)`` for a GRU with ``reset_after``."""
        return self.cell.bias

    def build(self, inputs_shape: Any, initial_state_shape: Any = None) -> None:
        """Create the weights.

        Raises ValueError unless ``inputs_shape`` has three dimensions.
        """
        if len(inputs_shape) != 3:
            raise ValueError(
                f"{type(self).__name__} {self.name!r} takes inputs of 3 dimensions, not "
                f"{tuple(inputs_shape)}"
            )
        super().build(self._batch_first(inputs_shape), initial_state_shape)

    def call(
        self, inputs: Any, initial_state: Any = None, mask: Any = None, training: Any = False
    ) -> Any:
        """Return the outputs, and with ``return_state`` the last states.

        Raises UnsupportedError for a mask.
        """
        if any(m is not None for m in keras.tree.flatten(mask)):
            raise UnsupportedError(
                f"{type(self).__name__} {self.name!r} was given a mask, which popnn does not "
                "support: give sequences of full length"
            )
        if not self.time_major:
            return super().call(inputs, initial_state=initial_state, training=training)
        results = super().call(
            keras.ops.swapaxes(inputs, 0, 1), initial_state=initial_state, training=training
        )
        if not self.return_sequences:
            return results
        outputs, states = (results[0], results[1:]) if self.return_state else (results, None)
        outputs = keras.ops.swapaxes(outputs, 0, 1)
        return outputs if states is None else (outputs, *states)

    def compute_output_shape(self, inputs_shape: Any, initial_state_shape: Any = None) -> Any:
        """Return the shape of the outputs, with time first if the layer is time-major."""
        shapes = super().compute_output_shape(self._batch_first(inputs_shape), initial_state_shape)
        if not (self.time_major and self.return_sequences):
            return shapes
        return (
            (self._batch_first(shapes[0]), *shapes[1:])
            if self.return_state
            else self._batch_first(shapes)
        )

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: Any = False
    ) -> Any:
        """Apply dropout, with one mask for the whole sequence, then run the recurrence."""
        del mask
        if training and self.dropout:
            first = sequences[:, 0, :]
            if self._dropout_pair is None:
                kept = self.cell.get_dropout_mask(first)
            else:
                kept = dropout_mask(
                    tf.shape(first), sequences.dtype, self.dropout, self._dropout_pair
                )
            sequences = sequences * kept[:, None, :]
        if self._is_fused:
            return super().inner_loop(sequences, initial_state, None, training=False)
        return keras.layers.RNN.inner_loop(self, sequences, initial_state, None, training=False)

    def get_config(self) -> dict[str, Any]:
        """Return Keras's config with popnn's arguments, including those without effect."""
        return {**super().get_config(), **self.popnn_options}

    def _batch_first(self, shape: Any) -> tuple[Any, ...]:
        """Return ``shape`` with the batch first."""
        return (shape[1], shape[0], *shape[2:]) if self.time_major else tuple(shape)


@keras.saving.register_keras_serializable(package="keras_recompute")
class PopnnLSTM(_Popnn, LSTM):
    """Graphcore's LSTM, with the weights and results of ``keras.layers.LSTM``.

    Inputs and output sequences are ``(batch, time, features)``, or ``(time, batch, features)`` with
    ``time_major``. With ``dropout_seed``, two ints, every execution draws the same mask, as on an
    IPU. Raises ValueError for what popnn lacks: ``use_bias=False``, regularisers, constraints,
    ``recurrent_dropout``, ``go_backwards``, ``unroll``, and other activations and types.
    """


@keras.saving.register_keras_serializable(package="keras_recompute")
class PopnnGRU(_Popnn, GRU):
    """Graphcore's GRU, with the weights and results of ``keras.layers.GRU``.

    See ``PopnnLSTM``.
    """
