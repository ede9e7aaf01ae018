"""Sharding of the data of ``fit``, ``evaluate`` and ``predict`` over the replicas.

Keras gets batches that hold one microbatch per replica, so a Keras step is one step of all
replicas. Batch sizes and step counts given by the user count the microbatches of all replicas, as
in Graphcore's Keras. Here they are divided by the number of replicas. Source: Graphcore,
replication.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...seams.keras.training import split_all_for_validation
from .microbatches import known_steps, single_precision, stack_microbatches


def steps_of_each(microbatches: int | None, replicas: int) -> int | None:
    """Return the number of steps of each replica; None if it is unknown.

    Warns of a remainder, which is dropped. Raises ValueError for fewer microbatches than replicas.
    """
    if microbatches is None or replicas == 1:
        return microbatches
    if microbatches < replicas:
        raise ValueError(
            f"the data has {microbatches} microbatches for {replicas} replicas, and each needs "
            "one. Give more data, a smaller batch_size, or fewer IPUs in auto_select_ipus"
        )
    if microbatches % replicas:
        warnings.warn(
            f"{microbatches} microbatches do not divide among {replicas} replicas: the last "
            f"{microbatches % replicas} are dropped",
            stacklevel=5,
        )
    return microbatches // replicas


def shard(
    data: tuple[Any, ...], batch_size: int | None, steps: int | None, replicas: int
) -> tuple[Any, int | None, int | None]:
    """Return data, batch size and steps as Keras gets them.

    ``data`` is a tuple of x and what belongs to it.
    """
    steps_then = None if steps is None else steps // replicas
    if isinstance(data[0], tf.data.Dataset):
        # A Keras step then takes one microbatch for every replica.
        dealt_out = data[0].batch(replicas, drop_remainder=True)
        return (_merge_replica_axis(dealt_out), *data[1:]), batch_size, steps_then
    count = known_steps(data[0], batch_size)
    if count is None:
        return data, batch_size, steps
    # Rows that do not fill a step of all replicas are dropped.
    rows = count // replicas * replicas * (batch_size or 32)
    trimmed: list[Any] = []
    for part in data:
        is_given = part is not None
        trimmed.append(keras.tree.map_structure(lambda a: a[:rows], part) if is_given else None)
    return tuple(trimmed), (batch_size or 32) * replicas, steps_then


def shard_arguments(given: Mapping[str, Any], replicas: int, *, steps_name: str) -> dict[str, Any]:
    """Return the arguments of ``fit``, ``evaluate`` or ``predict`` as Keras gets them."""
    found = dict(given)
    if found.get("validation_split") and found.get("validation_data") is None:
        data = tuple(map(found.get, _DATA))
        parts = split_all_for_validation(data, found.pop("validation_split"))
        found.update(zip(_DATA, parts[0]), validation_data=parts[1])
    if found.get("validation_data") is not None:
        validation = keras.utils.unpack_x_y_sample_weight(found["validation_data"])
        size = found.get("validation_batch_size") or found.get("batch_size")
        parts, size, steps = shard(validation, size, found.get("validation_steps"), replicas)
        found.update(validation_batch_size=size, validation_steps=steps)
        found["validation_data"] = parts[0] if isinstance(parts[0], tf.data.Dataset) else parts
    names = [name for name in _DATA if name in found]
    data = tuple(map(found.__getitem__, names))
    parts, size, steps = shard(data, found.get("batch_size"), found.get(steps_name), replicas)
    return {**found, **dict(zip(names, parts)), "batch_size": size, steps_name: steps}


def next_of_all(iterator: Iterator[Any], count: int, replicas: int) -> Any:
    """Return ``count`` steps of all replicas, stacked along a new first axis.

    The microbatches of each replica follow one another.
    """
    return of_all([next(iterator) for _ in range(count)], replicas)


def of_all(steps: list[Any], replicas: int) -> Any:
    """Return the microbatches of Keras's ``steps``, replica by replica, stacked on a new axis."""
    if replicas == 1:
        return stack_microbatches(steps)
    for leaf in tf.nest.flatten(steps[0]):
        if leaf.shape[0] is None or leaf.shape[0] % replicas:
            raise ValueError(
                f"a batch of {leaf.shape[0]} samples does not divide among {replicas} replicas: "
                "give a multiple of that"
            )
    shares = []
    for r in range(replicas):
        for step in steps:
            share = tf.nest.map_structure(lambda t, r=r: tf.split(t, replicas)[r], step)
            shares.append(share)
    return stack_microbatches(shares)


def example_batch(data: tuple[Any, ...], batch_size: int | None) -> tuple[Any, ...]:
    """Return x, y and sample weights of one replica's microbatch as Keras tensors."""
    if isinstance(data[0], tf.data.Dataset):
        given = keras.utils.unpack_x_y_sample_weight(data[0].element_spec)
    else:
        given = (*data, None, None)[:3]

    def one(part: Any) -> Any:
        if isinstance(part, tf.TensorSpec):
            return keras.KerasTensor(part.shape, single_precision(part.dtype).name)
        # Keras makes columns of vectors.
        shape = np.shape(part)[1:] or (1,)
        return keras.KerasTensor(
            (batch_size or 32, *shape), single_precision(tf.as_dtype(part.dtype)).name
        )

    return tuple(None if part is None else keras.tree.map_structure(one, part) for part in given)


def log_effective_batch(batch: int, steps: int, replicas: int) -> None:
    """Log the number of samples of an optimiser update."""
    accumulating = f", accumulating {steps} microbatches per update" if steps > 1 else ""
    logging.getLogger(__name__).info(
        "training is distributed across %d replicas%s: the effective batch size is %d",
        replicas,
        accumulating,
        batch * steps * replicas,
    )


_DATA = ("x", "y", "sample_weight")


def _merge_replica_axis(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return ``dataset`` with its first two axes, replica and sample, merged."""

    def merged(*element: Any) -> Any:
        parts = tf.nest.map_structure(
            lambda t: tf.reshape(t, (t.shape[0] * t.shape[1], *t.shape[2:])), element
        )
        return parts if len(parts) > 1 else parts[0]

    return dataset.map(merged)
