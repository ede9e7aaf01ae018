"""Peephole rewrites for XLA:CPU: operations that are slow or large inside a branch or a loop, in another form."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from .convolutions import faster_convolution
from .poolings import faster_pooling


def faster_in_a_section(operation: tf.Operation) -> Callable[..., tf.Tensor] | None:
    """Return the function of its inputs by which to replace ``operation``; None where it stays as it is."""
    return faster_convolution(operation) or faster_pooling(operation)
