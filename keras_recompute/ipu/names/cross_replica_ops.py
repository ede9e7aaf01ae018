"""``tensorflow.python.ipu.cross_replica_ops``: what replicas have in common (Graphcore: replication)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..configuration.refusals import refuse
from ..pipeline.emulated_replicas import running

__all__ = ["assume_equal_across_replicas", "cross_replica_mean", "cross_replica_sum"]


def cross_replica_sum(x: Any, replica_group_size: int | None = None, name: str | None = None) -> tf.Tensor:
    """Return the sum of ``x`` over all replicas.

    Args:
        x: A tensor.
        replica_group_size: The replicas that are summed together; None means all.
        name: The name of the result.

    Raises:
        ValueError: For groups that do not divide the replicas.
        UnsupportedError: In a model, a loss or a metric of several replicas: they run one after the other. An optimiser may
            sum. For groups of several replicas in a function that is given to ``IPUStrategy.run``.
    """
    return _of_group(x, replica_group_size, name, is_mean=False)


def cross_replica_mean(x: Any, replica_group_size: int | None = None, name: str | None = None) -> tf.Tensor:
    """Return the mean of ``x`` over all replicas; arguments and errors are those of ``cross_replica_sum``."""
    return _of_group(x, replica_group_size, name, is_mean=True)


def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """Return ``tensors``, any nest of them, as they are: no program here does anything else where they are equal.

    Args:
        tensors: A nest of tensors.
        inplace: Has no effect.
    """
    del inplace
    return tf.nest.map_structure(tf.identity, tensors)


def _of_group(x: Any, size: int | None, name: str | None, *, is_mean: bool) -> tf.Tensor:
    program, x = running(), tf.convert_to_tensor(x)
    replicas = program.replicas if program else 1
    if program is None and size not in (None, 1):
        raise refuse("replicas of a function", f"replica_group_size={size}")
    if size is not None and (size < 1 or replicas % size):
        raise ValueError(f"replica_group_size={size} does not divide the {replicas} replicas of the model")
    together = replicas if size is None else size
    if program is not None and together > 1 and not program.are_equal:
        raise refuse("sums over replicas inside a model", f"{together} replicas")
    # In what is written once for all replicas, x is the same in each.
    return tf.identity(x if is_mean else x * tf.cast(together, x.dtype), name)
