"""``tensorflow.python.ipu.ops.f8_ops``: 8-bit formats; conversions are refused."""

from __future__ import annotations

import enum
from typing import NamedTuple

from ..configuration.lazy_refusal import refuse_on_use

__all__ = [
    "Format",
    "QuarterTensor",
    "convert_from_f8",
    "convert_to_f8",
    "create_metadata",
    "f8_matmul",
]

_MODULE = "tensorflow.python.ipu.ops.f8_ops"


class Format(enum.Enum):
    """The split of the bits: one sign bit, then exponent and mantissa."""

    F143 = 0
    F152 = 1


class Metadata(NamedTuple):
    """A format, and the power of two that scales its numbers."""

    format: Format
    scale: int


def create_metadata(fmt: Format, scale: int = 0) -> Metadata:
    """Return the description of a format."""
    return Metadata(fmt, scale)


QuarterTensor = refuse_on_use(f"{_MODULE}.QuarterTensor")
convert_from_f8 = refuse_on_use(f"{_MODULE}.convert_from_f8")
convert_to_f8 = refuse_on_use(f"{_MODULE}.convert_to_f8")
f8_matmul = refuse_on_use(f"{_MODULE}.f8_matmul")
