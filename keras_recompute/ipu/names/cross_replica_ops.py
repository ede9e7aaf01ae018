"""``tensorflow.python.ipu.cross_replica_ops``: what replicas have in common, of which one is emulated."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..configuration.unsupported import refuse

__all__ = ["assume_equal_across_replicas", "cross_replica_mean", "cross_replica_sum"]


def cross_replica_sum(x: Any, replica_group_size: int | None = None, name: str | None = None) -> tf.Tensor:
    """Return the sum of ``x`` over all replicas: there is one.

    Args:
        x: A tensor.
        replica_group_size: The replicas that are summed together.
        name: The name of the result.

    Raises:
        UnsupportedError: For groups of more than one replica.
    """
    if replica_group_size not in (None, 1):
        raise refuse("replication", f"replica_group_size={replica_group_size}")
    return tf.identity(x, name)


def cross_replica_mean(x: Any, replica_group_size: int | None = None, name: str | None = None) -> tf.Tensor:
    """Return the mean of ``x`` over all replicas; arguments and errors are those of ``cross_replica_sum``."""
    return cross_replica_sum(x, replica_group_size, name)


def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """Return ``tensors``, any nest of them, as they are: with one replica they are equal.

    Args:
        tensors: A nest of tensors.
        inplace: Has no effect.
    """
    del inplace
    return tf.nest.map_structure(tf.identity, tensors)
