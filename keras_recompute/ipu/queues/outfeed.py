"""``tensorflow.python.ipu.ipu_outfeed_queue``: the results of a script's own loop.

On an IPU the queue streams to the host while a program runs. Here it is a list on the host, read
after the program has run.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ..pipeline.pipelining_options import positive_or_none
from .host import require_host

__all__ = ["IPUOutfeedMode", "IPUOutfeedQueue"]


class IPUOutfeedMode(enum.Enum):
    """Which results an outfeed queue keeps."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue:
    """A queue of results out of a program.

    ``enqueue`` puts a nest of tensors in, anywhere in a ``tf.function``, also in a loop.
    ``dequeue`` takes everything out: with ALL the nest, stacked along a new first axis, and with
    LAST the last nest alone.
    """

    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int | None = None,
        optimise_latency: bool = False,
    ) -> None:
        mode = IPUOutfeedMode.ALL if outfeed_mode is None else outfeed_mode
        if not isinstance(mode, IPUOutfeedMode):
            raise TypeError(f"outfeed_mode must be an IPUOutfeedMode, not {outfeed_mode!r}")
        positive_or_none("buffer_depth", buffer_depth)
        del device_ordinal, optimise_latency  # there is one device
        self._mode = mode
        self._structure: Any = None
        self._store: list[list[Any]] = []
        self._deleted = False

    @property
    def enqueued(self) -> bool:
        """Whether ``enqueue`` has been called: when the program was traced, at the latest."""
        return self._structure is not None

    def enqueue(self, tensors: Any) -> Any:
        """Put a nest of tensors in; return the operation that does so.

        Raises ValueError for another structure.
        """
        self._require_alive()
        flat = list(map(tf.convert_to_tensor, tf.nest.flatten(tensors)))
        # Structures are compared and stored without their tensors.
        template = tf.nest.map_structure(lambda _: 0, tensors)
        if self._structure is not None:
            try:
                tf.nest.assert_same_structure(self._structure, template)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"the outfeed queue holds {self._structure!r} and cannot take {template!r}: "
                    "enqueue one structure only"
                ) from error
        self._structure = template
        if tf.executing_eagerly():
            self._put(*flat)
            return None
        require_host("IPUOutfeedQueue.enqueue")
        # The results go to a Python list, also from inside a loop of the graph.
        return tf.py_function(self._put, flat, [])

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Take everything out.

        Raises ValueError before ``enqueue`` was called, and with LAST if the queue is empty.
        """
        # Results are there once the program has returned.
        del wait_for_completion
        self._require_alive()
        if self._structure is None:
            raise ValueError(
                "nothing has been enqueued in the outfeed queue: call enqueue in the program first"
            )
        results, self._store = self._store, []
        if not results:
            raise ValueError("the outfeed queue is empty: run the program that fills it first")
        if self._mode is IPUOutfeedMode.LAST:
            return tf.nest.pack_sequence_as(self._structure, results[-1])
        return tf.nest.pack_sequence_as(self._structure, list(map(tf.stack, zip(*results))))

    @property
    def deleter(self) -> Any:
        """Delete the queue; it cannot be used again."""
        self._require_alive()
        self._deleted, self._store = True, []
        return tf.no_op() if not tf.executing_eagerly() else None

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the results in order, and empty the queue.

        Raises ValueError with LAST.
        """
        if self._mode is IPUOutfeedMode.LAST:
            raise ValueError("an outfeed queue of mode LAST holds one result: use dequeue")
        self._require_alive()
        results, self._store = self._store, []
        return iter([tf.nest.pack_sequence_as(self._structure, parts) for parts in results])

    def _put(self, *tensors: tf.Tensor) -> None:
        """Append ``tensors``; with LAST, in place of the earlier ones."""
        if self._mode is IPUOutfeedMode.LAST:
            self._store = []
        self._store.append(list(tensors))

    def _require_alive(self) -> None:
        """Raise ValueError if the queue was deleted."""
        if self._deleted:
            raise ValueError("the outfeed queue has been deleted: create a new one")
