"""Offloading: saved values that wait for the backward pass in the memory of the host.

Where the host is the device there is nothing to move, and a program that XLA compiles can move
nothing. There the value is saved where it is, and a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import tensorflow as tf

from ...errors import RecomputeWarning
from ..graph.target import Target
from ..partition.partition import Partition

_HOST = "/CPU:0"


def store(part: Partition, saved: Sequence[tf.Tensor], target: Target) -> list[tf.Tensor]:
    """Return the ``saved`` values; those to be offloaded are copies on the host."""
    if not part.offloaded or not _can_move(target):
        return list(saved)
    with tf.device(_HOST):
        return _moved(part, saved)


def fetch(part: Partition, kept: Sequence[tf.Tensor], target: Target) -> list[tf.Tensor]:
    """Return ``kept`` with the values that ``store`` put on the host back on the device."""
    if not part.offloaded or not tf.config.list_logical_devices("GPU") or target.has_one_memory:
        return list(kept)
    with tf.device("/GPU:0"):
        return _moved(part, kept)


def _moved(part: Partition, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return ``values`` with copies of the offloaded ones, on the device of the scope."""
    return [tf.identity(t) if n in part.offloaded else t for n, t in enumerate(values)]


def _can_move(target: Target) -> bool:
    if tf.config.list_logical_devices("GPU") and not target.has_one_memory:
        return True
    reason = (
        "a program that XLA compiles has one memory (call it without jit_compile to offload)"
        if target.has_one_memory
        else "this machine has no device other than the host"
    )
    warnings.warn(
        f"values are saved where they are instead of offloaded: {reason}",
        RecomputeWarning,
        stacklevel=2,
    )
    return False
