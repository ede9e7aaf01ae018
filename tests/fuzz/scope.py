"""Where the instructions of a program run: the values made so far, and what each of them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from .op_table import WIDTH


@dataclass(frozen=True)
class Value:
    """A tensor and what it is: matrix, row, column or scalar.

    A shape with unknown dimensions would not say.
    """

    tensor: tf.Tensor
    kind: str = "matrix"


@dataclass(frozen=True)
class Frame:
    """Where instructions run: the values so far, the integer argument, the number of rows (a tensor
    where not known).
    """

    values: tuple[Value, ...]
    n: tf.Tensor
    rows: Any

    def value(self, back: int) -> Value:
        return self.values[-1 - back % len(self.values)]

    def with_value(self, *values: Value) -> Frame:
        return Frame((*self.values, *values), self.n, self.rows)

    def matrix(self, back: int) -> tf.Tensor:
        return self.as_kind(self.value(back), "matrix")

    def as_kind(self, value: Value, kind: str) -> tf.Tensor:
        """Return ``value`` broadcast or averaged to ``kind``."""
        if value.kind == kind:
            return value.tensor
        if kind == "matrix":
            return tf.broadcast_to(value.tensor, [self.rows, WIDTH])
        if kind == "scalar":
            return tf.reduce_mean(value.tensor)
        row = value.tensor if value.kind == "scalar" else tf.reduce_mean(value.tensor, axis=0)
        return row if value.kind == "matrix" else tf.broadcast_to(row, [WIDTH])
