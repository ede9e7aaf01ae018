"""Preventing constant folding of large zeros: they exist only where the compiled program makes them.

For XLA. Before it sees a graph, TensorFlow computes all of it that reads no input, so that ``tf.zeros`` is made in memory and
stays there: over 100 MiB for a small transformer. So large zeros are an empty tensor padded by an operation that TensorFlow has
no kernel for, which XLA turns into the broadcast that ``tf.zeros`` becomes too.

What it gains, in the process, not in the compiled program: "What the process keeps of a compiled step" in benchmarks/NOTES.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from ...seams.tensorflow.xla import xla_pad
from ..once import along, once
from .thresholds import FOLDED_ELEMENTS


def late_zeros(shape: Sequence[int | tf.Tensor], dtype: tf.DType) -> tf.Tensor | None:
    """Return zeros of ``shape``; None where they are small, or their number is not known."""
    if not all(isinstance(d, int) for d in shape) or math.prod(shape) < FOLDED_ELEMENTS:
        return None
    nothing, below = once(tf.zeros, (0, *shape[1:]), dtype), along(0, 0, len(shape))
    return xla_pad(nothing, once(tf.zeros, (), dtype), along(0, shape[0], len(shape)), below, below)
