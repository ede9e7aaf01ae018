"""The roles of a section's arguments in a loop, and requests for its outputs.

They are those of ``jax.lax.scan``: carry, scanned inputs and constants; final and stacked outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import tensorflow as tf


@dataclass(frozen=True)
class Carry:
    """An argument that each section receives from the one before: its output number ``output``."""

    output: int


@dataclass(frozen=True)
class Scanned:
    """An argument whose steps from ``start + s * length`` along ``axis`` go to section s."""

    axis: int
    start: int
    length: int


@dataclass(frozen=True)
class Constant:
    """An argument that is the same for all sections."""


@dataclass(frozen=True)
class FinalOutput:
    """A request for output number ``output`` of the last section."""

    output: int


@dataclass(frozen=True)
class StackedOutput:
    """A request for output number ``output`` of all sections.

    They are concatenated along ``axis``, or stacked if it is None.
    """

    output: int
    axis: int | None


Role = Union[Carry, Scanned, Constant]
Request = Union[FinalOutput, StackedOutput]


def section_spec(argument: tf.Tensor, role: Role) -> tf.TensorSpec:
    """Return the type and shape in which a section is given ``argument``.

    A section is given its share of a Scanned one.
    """
    shape = argument.shape.as_list()
    if isinstance(role, Scanned):
        shape[role.axis] = role.length
    return tf.TensorSpec(shape, argument.dtype)
