"""The stash of a pipeline stage: what its forward pass keeps for its backward pass.

A stash is a ring of buffers written in place. The forward pass writes a microbatch, and the
backward pass reads it in place. The ring has one slot more than the number of microbatches between
the two, for the one that is read.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import tensorflow as tf

from ...engine import target_now
from ...engine.scan import SliceStore, empty_all


@dataclass(frozen=True)
class Stash:
    """The kept values of a microbatch, with ``depth`` other microbatches between its passes.

    There is one value per entry of ``specs``, of static shape. With depth 0 there is no ring: the
    values pass directly from one pass to the other.
    """

    depth: int
    specs: tuple[tf.TensorSpec, ...]

    @property
    def bytes_per_microbatch(self) -> int:
        """The size of the kept values of one microbatch."""
        return sum(spec.shape.num_elements() * spec.dtype.size for spec in self.specs)

    @property
    def total_bytes(self) -> int:
        """The size of all values that are kept at once."""
        # One slot more than the depth: for the microbatch that the backward pass reads.
        return (self.depth + 1) * self.bytes_per_microbatch

    def empty(self) -> list[tf.Tensor]:
        """Return an empty ring for each value; an empty list if there is no ring."""
        return empty_all(self._rings, target_now())

    def put(
        self, rings: Sequence[tf.Tensor], values: Sequence[tf.Tensor], number: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return the rings with ``values`` as microbatch ``number``."""
        with tf.name_scope("stash"):
            return [
                p.put(ring, self.place(number), value)
                for p, ring, value in zip(self._rings, rings, values)
            ]

    def take(
        self, rings: Sequence[tf.Tensor], number: tf.Tensor, *, but: Container[int] = ()
    ) -> list[tf.Tensor]:
        """Return the values of microbatch ``number`` except the values ``but``.

        It must be one of the last ``depth + 1`` microbatches.
        """
        with tf.name_scope("stash"):
            pairs = enumerate(zip(self._rings, rings))
            return [p.get(ring, self.place(number)) for n, (p, ring) in pairs if n not in but]

    def whole(self, rings: Sequence[tf.Tensor], value: int) -> tf.Tensor:
        """Return all slots of ``value``, stacked; ``place`` is a microbatch's index in it."""
        return self._rings[value].whole(rings[value])

    @property
    def _rings(self) -> list[SliceStore]:
        if not self.depth:
            return []
        return [SliceStore(self.depth + 1, tuple(s.shape), s.dtype) for s in self.specs]

    def place(self, number: tf.Tensor) -> tf.Tensor:
        """Return the slot of microbatch ``number``."""
        return tf.math.floormod(number, self.depth + 1)
