"""Graphcore's ``Embedding`` and ``SerialDense``, whose work is split into sequential parts."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...errors import UnsupportedError

_DIMENSIONS = ("input_columns", "input_rows_kernel_columns", "kernel_rows")


@keras.saving.register_keras_serializable(package="keras_recompute")
class Embedding(keras.layers.Layer):
    """Look up rows of a table: indices ``(batch, length)`` give ``(batch, length, output_dim)``.

    With ``serialization_factor`` there are as many lookups, each in a part of the table. Raises
    ValueError for inputs that are not two-dimensional, and for a factor below 1 or that does not
    divide ``input_dim``; UnsupportedError for what Graphcore's layer lacks: regularisers,
    constraints, ``mask_zero``, ``input_length``.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        input_length: int | None = None,
        serialization_factor: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**kwargs, "autocast": False})
        for name, value in (
            ("embeddings_regularizer", embeddings_regularizer),
            ("activity_regularizer", activity_regularizer),
            ("embeddings_constraint", embeddings_constraint),
            ("mask_zero", mask_zero),
            ("input_length", input_length),
        ):
            if value:
                raise UnsupportedError(
                    f"Graphcore's Embedding has no {name}, but was given {value!r}: leave it out"
                )
        _check_factor("Embedding", serialization_factor, input_dim, "input_dim")
        self.input_dim, self.output_dim, self.serialization_factor = (
            input_dim,
            output_dim,
            serialization_factor,
        )
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Any) -> None:
        """Create the table.

        Raises ValueError unless the inputs are ``(batch, length)``.
        """
        if len(input_shape) != 2:
            raise ValueError(
                f"Embedding {self.name!r} takes inputs (batch, length), not {tuple(input_shape)}"
            )
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            name="embeddings",
        )
        self.built = True

    def call(
        self, inputs: tf.Tensor, inputs_are_sorted: bool = False, training: Any = None
    ) -> tf.Tensor:
        """Return the rows of ``inputs``, ``(batch, length, output_dim)``.

        ``inputs_are_sorted`` tunes Poplar's lookup and has no effect.
        """
        del inputs_are_sorted, training
        numbers, table = tf.cast(inputs, tf.int32), tf.convert_to_tensor(self.embeddings)
        table = tf.cast(table, self.compute_dtype)
        if self.serialization_factor == 1:
            return tf.gather(table, numbers)
        rows = self.input_dim // self.serialization_factor
        found = tf.zeros(
            (*numbers.shape, self.output_dim) if None not in numbers.shape else (), table.dtype
        )
        for first in range(0, self.input_dim, rows):
            here = (numbers >= first) & (numbers < first + rows)
            # Indices outside this part look up its first row, which is masked out below.
            piece = tf.gather(table[first : first + rows], tf.where(here, numbers - first, 0))
            found += tf.where(here[..., None], piece, 0)
        return found

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return ``(batch, length, output_dim)``."""
        return (*input_shape, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """Return Keras's config with the arguments."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "serialization_factor": self.serialization_factor,
        }


@keras.saving.register_keras_serializable(package="keras_recompute")
class SerialDense(keras.layers.Dense):
    """``keras.layers.Dense`` as ``serialization_factor`` smaller matrix products.

    ``serialization_dimension`` is split: ``input_columns`` (the second to last dimension of the
    inputs), ``input_rows_kernel_columns`` (the dimension that is summed over) or ``kernel_rows``
    (the units). Raises ValueError for another name, and for a factor below 1 or that does not
    divide the dimension.
    """

    def __init__(
        self,
        units: int,
        serialization_factor: int,
        serialization_dimension: str,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, *args, **kwargs)
        if serialization_dimension not in _DIMENSIONS:
            raise ValueError(
                f"serialization_dimension={serialization_dimension!r} is unknown: give one of "
                f"{', '.join(_DIMENSIONS)}"
            )
        _check_factor("SerialDense", serialization_factor)
        self.serialization_factor, self.serialization_dimension = (
            serialization_factor,
            serialization_dimension,
        )

    def build(self, input_shape: Any) -> None:
        """Create the weights.

        Raises ValueError unless the factor divides the dimension.
        """
        size = {
            "input_columns": input_shape[-2],
            "input_rows_kernel_columns": input_shape[-1],
            "kernel_rows": self.units,
        }
        cut = size[self.serialization_dimension]
        if cut is not None:
            _check_factor(
                "SerialDense", self.serialization_factor, cut, self.serialization_dimension
            )
        super().build(input_shape)

    def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
        """Return ``activation(inputs @ kernel + bias)``."""
        del training
        kernel, count = tf.convert_to_tensor(self.kernel), self.serialization_factor
        if self.serialization_dimension == "input_columns":
            outputs = tf.concat(
                [tf.matmul(rows, kernel) for rows in tf.split(inputs, count, axis=-2)], axis=-2
            )
        elif self.serialization_dimension == "kernel_rows":
            outputs = tf.concat(
                [tf.matmul(inputs, units) for units in tf.split(kernel, count, axis=-1)], axis=-1
            )
        else:
            pieces = zip(tf.split(inputs, count, axis=-1), tf.split(kernel, count, axis=0))
            outputs = tf.add_n([tf.matmul(rows, columns) for rows, columns in pieces])
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs if self.activation is None else self.activation(outputs)

    def get_config(self) -> dict[str, Any]:
        """Return Keras's config with the arguments."""
        return {
            **super().get_config(),
            "serialization_factor": self.serialization_factor,
            "serialization_dimension": self.serialization_dimension,
        }


def _check_factor(who: str, factor: Any, size: int | None = None, dimension: str = "") -> None:
    """Raise ValueError unless ``factor`` is a positive int that divides ``size``."""
    if type(factor) is not int or factor < 1:
        raise ValueError(f"{who}: serialization_factor={factor!r}: give a whole number from 1 on")
    if size is not None and size % factor:
        raise ValueError(
            f"{who}: serialization_factor={factor} does not divide {dimension}, which is {size}: "
            "give a number that does"
        )
