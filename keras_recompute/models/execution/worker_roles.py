"""The part of each worker in ``fit``: which one writes files, and that all have as many batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...cluster_tasks import task_number, training_tasks
from ...errors import InvalidArgumentError
from ...seams.keras.backup import AtomicBackup

_WRITERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)


def callbacks_of_worker(callbacks: Any, strategy: tf.distribute.Strategy) -> Any:
    """Return the ``callbacks`` that this process of ``strategy`` is to call.

    ``callbacks`` are in any form that ``fit`` takes.
    """
    number = worker_number(strategy)
    if number is None or callbacks is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    given: Sequence[Any] = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    found = []
    for each in given:
        callback = each
        if type(each) is keras.callbacks.BackupAndRestore:
            callback = AtomicBackup(each, writes=number == 0)
        # Workers share the files, so only the first writes them.
        if number == 0 or not isinstance(callback, _WRITERS):
            found.append(callback)
    return found


def worker_number(strategy: tf.distribute.Strategy) -> int | None:
    """Return the number of this process in ``strategy``, 0 for the chief; None if it is alone."""
    resolver = strategy.cluster_resolver
    return (
        task_number(resolver)
        if resolver is not None and len(training_tasks(resolver)) > 1
        else None
    )


def require_equal_counts(
    strategy: tf.distribute.Strategy, count: int | None, what_to_do: str
) -> None:
    """Raise InvalidArgumentError in all processes unless all have the same ``count`` of batches."""
    own = strategy.run(lambda: tf.constant([-1 if count is None else count], tf.int64))
    counts = strategy.gather(own, axis=0).numpy().tolist()
    if len(set(counts)) > 1:
        said = ", ".join("unknown" if each < 0 else str(each) for each in counts)
        raise InvalidArgumentError(
            f"the workers have different numbers of batches, in their order: {said}. {what_to_do}"
        )
