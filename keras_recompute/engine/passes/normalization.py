"""Batch normalisation by TensorFlow's kernel for it.

For TensorFlow without XLA, on a CPU. Keras writes the layer as sums, products and a root, each a pass over the image, and all
of them again for the gradient: 89 operations where the kernels have 19, and each costs the process some kilobytes for as long
as the graph lives. Numbers are the same but for the order in which they are added up.

What it gains: "Convolutions without XLA" in benchmarks/NOTES.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ...seams.keras.normalization import batch_normalization_fused

Result = TypeVar("Result")


def with_fused_normalization(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return ``function``, which is about to be traced, with one operation for each batch normalisation of images."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Result:
        with batch_normalization_fused():
            return function(*args, **kwargs)

    return run
