"""``tensorflow.python.ipu.ipu_infeed_queue``: the input data of a script's own loop.

On an IPU the queue streams from the host while a program runs. Here it is the dataset's iterator: a
loop in the function given to ``IPUStrategy.run`` reads ``next(iterator)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ..pipeline.pipelining_options import positive_or_none
from .host import require_host

__all__ = ["IPUInfeedQueue", "IPUIterator"]


class IPUInfeedQueue:
    """A queue of a dataset's elements into a program.

    Raises ValueError for a dataset whose elements have an unknown shape, and if data is taken
    before ``initializer`` was called or after the queue was deleted.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        device_ordinal: int | None = None,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                f"IPUInfeedQueue needs a tf.data.Dataset, not {dataset!r} of type "
                f"{type(dataset).__name__}"
            )
        positive_or_none("prefetch_depth", prefetch_depth)
        for spec in tf.nest.flatten(dataset.element_spec):
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    "IPUInfeedQueue needs elements of known shape, but the dataset has "
                    f"{spec.dtype.name}{spec.shape}: batch it with drop_remainder=True"
                )
        del device_ordinal, optimise_latency, kwargs  # there is one device
        self._dataset = dataset
        self._iterator: Any = None
        self._deleted = self._dequeued = False

    @property
    def initializer(self) -> Any:
        """Start the queue at the dataset's first element."""
        self._require_alive()
        self._iterator = iter(self._dataset)
        # A graph needs an operation to run, although nothing is left to do.
        return tf.no_op() if not tf.executing_eagerly() else None

    @property
    def deleter(self) -> Any:
        """Delete the queue; it cannot be used again."""
        self._require_alive()
        self._iterator, self._deleted = None, True
        return tf.no_op() if not tf.executing_eagerly() else None

    @property
    def number_of_tuple_elements(self) -> int:
        """The number of tensors in an element."""
        return len(tf.nest.flatten(self._dataset.element_spec))

    @property
    def dequeued(self) -> bool:
        """Whether an element has been taken."""
        return self._dequeued

    def _dequeue(self) -> Any:
        """Return the next element."""
        self._require_alive()
        require_host("next(iterator)")
        if self._iterator is None:
            raise ValueError("the infeed queue has not been started: use its initializer first")
        self._dequeued = True
        return next(self._iterator)

    def _require_alive(self) -> None:
        """Raise ValueError if the queue was deleted."""
        if self._deleted:
            raise ValueError("the infeed queue has been deleted: create a new one")


class IPUIterator:
    """An iterator over a dataset or infeed queue, for functions that ``IPUStrategy.run`` calls."""

    def __init__(
        self, dataset: tf.data.Dataset | None = None, infeed_queue: IPUInfeedQueue | None = None
    ) -> None:
        if (dataset is None) == (infeed_queue is None):
            raise ValueError(
                "IPUIterator needs either a dataset or an infeed_queue: give one of the two"
            )
        self._queue = infeed_queue if infeed_queue is not None else IPUInfeedQueue(dataset)
        if infeed_queue is None:
            _ = self._queue.initializer

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._queue._dequeue()
