"""Sizes of arrays and variables in bytes, whatever backend they are of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import ml_dtypes  # noqa: F401  # teaches NumPy bfloat16 and the 8-bit types
import numpy as np


def spec_bytes(spec: Any) -> int:
    """Return the size of what has a ``shape`` without open sizes and a ``dtype``."""
    return math.prod(spec.shape) * _element_bytes(spec.dtype)


def bytes_of_variables(variables: Iterable[Any]) -> int:
    """Return the bytes of all ``variables``, without those of unknown size."""
    total = 0
    for variable in variables:
        sizes = tuple(variable.shape)
        if None not in sizes:
            total += math.prod(sizes) * _element_bytes(variable.dtype)
    return total


def _element_bytes(dtype: Any) -> int:
    return np.dtype(getattr(dtype, "name", dtype)).itemsize
