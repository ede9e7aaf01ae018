"""What a loop over equal sections takes and returns: the roles of a section's arguments, and requests for its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import tensorflow as tf


@dataclass(frozen=True)
class Carry:
    """An argument that section s receives from section s - 1: that section's output number ``output``."""

    output: int


@dataclass(frozen=True)
class Scanned:
    """An argument of which section s takes the steps from ``start + s * length`` along ``axis``."""

    axis: int
    start: int
    length: int


@dataclass(frozen=True)
class Constant:
    """An argument that is the same for all sections."""


@dataclass(frozen=True)
class FinalOutput:
    """Ask for output number ``output`` of the last section."""

    output: int


@dataclass(frozen=True)
class StackedOutput:
    """Ask for output number ``output`` of all sections, concatenated along ``axis``, or stacked where it is None."""

    output: int
    axis: int | None


Role = Union[Carry, Scanned, Constant]
Request = Union[FinalOutput, StackedOutput]


def section_spec(argument: tf.Tensor, role: Role) -> tf.TensorSpec:
    """Return the type and shape in which a section sees ``argument``: of a Sliced one, its share."""
    shape = argument.shape.as_list()
    if isinstance(role, Scanned):
        shape[role.axis] = role.length
    return tf.TensorSpec(shape, argument.dtype)
