"""Peephole rewrites for XLA:CPU: operations that are slow or large inside a branch or a loop, in another form."""

from __future__ import annotations

from collections.abc import Callable, Set

import tensorflow as tf

from .passes.convolutions import faster_convolution
from .passes.poolings import faster_pooling

_REWRITES = {"convolutions": faster_convolution, "poolings": faster_pooling}


def faster_in_a_section(operation: tf.Operation, passes: Set[str]) -> Callable[..., tf.Tensor] | None:
    """Return the function of its inputs by which one of ``passes`` replaces ``operation``; None where it stays as it is."""
    found = (rewrite(operation) for name, rewrite in _REWRITES.items() if name in passes)
    return next((faster for faster in found if faster), None)
