"""``tensorflow.python.ipu.cross_replica_ops``: reductions over replicas.

Source: Graphcore, replication.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..configuration.refusals import refuse
from ..pipeline.emulated_replicas import running

__all__ = ["assume_equal_across_replicas", "cross_replica_mean", "cross_replica_sum"]


def cross_replica_sum(
    x: Any, replica_group_size: int | None = None, name: str | None = None
) -> tf.Tensor:
    """Return the sum of ``x`` over all replicas.

    Args:
        x: A tensor.
        replica_group_size: The number of replicas that are summed; None means all.
        name: The name of the result.

    Raises:
        ValueError: For groups that do not divide the replicas.
        UnsupportedError: In a model, loss or metric of several replicas, because they run one after
            the other; an optimiser may sum. Also for groups of several replicas in a function given
            to ``IPUStrategy.run``.
    """
    return _of_group(x, replica_group_size, name, is_mean=False)


def cross_replica_mean(
    x: Any, replica_group_size: int | None = None, name: str | None = None
) -> tf.Tensor:
    """Return the mean of ``x`` over all replicas.

    Arguments and errors are those of ``cross_replica_sum``.
    """
    return _of_group(x, replica_group_size, name, is_mean=True)


def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """Return a nest of tensors unchanged; equal tensors need no special treatment here.

    Args:
        tensors: A nest of tensors.
        inplace: Has no effect.
    """
    del inplace
    return tf.nest.map_structure(tf.identity, tensors)


def _of_group(x: Any, size: int | None, name: str | None, *, is_mean: bool) -> tf.Tensor:
    """Return the sum or mean over groups of ``size`` replicas."""
    program, x = running(), tf.convert_to_tensor(x)
    replicas = program.replicas if program else 1
    if program is None and size not in (None, 1):
        raise refuse("replicas of a function", f"replica_group_size={size}")
    if size is not None and (size < 1 or replicas % size):
        raise ValueError(
            f"replica_group_size={size} does not divide the {replicas} replicas of the model: "
            "give a number that does"
        )
    together = replicas if size is None else size
    if program is not None and together > 1 and not program.are_equal:
        raise refuse("sums over replicas inside a model", f"{together} replicas")
    # This code is emitted once for all replicas, so x is the same in each.
    return tf.identity(x if is_mean else x * tf.cast(together, x.dtype), name)
