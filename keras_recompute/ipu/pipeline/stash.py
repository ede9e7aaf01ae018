"""The stash of a pipeline stage: what it keeps of a microbatch between its forward and its backward pass.

A stash is a ring of buffers, written in place: the forward pass puts a microbatch in, and the backward pass reads it
where it lies. It has one place more than other microbatches come between the two, for the one that is read.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import tensorflow as tf

from ...engine.passes import target_now
from ...engine.pieces import Pieces


@dataclass(frozen=True)
class Stash:
    """The values kept of a microbatch, one per entry of ``specs``, of known shape, while ``depth`` others come in between.

    With depth 0 there is no ring: what is kept goes from one pass to the other as it is.
    """

    depth: int
    specs: tuple[tf.TensorSpec, ...]

    @property
    def bytes_per_microbatch(self) -> int:
        """The size of what is kept of one microbatch."""
        return sum(spec.shape.num_elements() * spec.dtype.size for spec in self.specs)

    @property
    def total_bytes(self) -> int:
        """The size of everything that is kept at once."""
        return (self.depth + 1) * self.bytes_per_microbatch

    def empty(self) -> list[tf.Tensor]:
        """Return a ring in which nothing has been put; nothing at all where there is none."""
        return [pieces.empty(target_now()) for pieces in self._rings]

    def put(self, rings: Sequence[tf.Tensor], values: Sequence[tf.Tensor], number: tf.Tensor) -> list[tf.Tensor]:
        """Return the rings with ``values`` as microbatch ``number``."""
        with tf.name_scope("stash"):
            return [p.put(ring, self.place(number), value) for p, ring, value in zip(self._rings, rings, values)]

    def take(self, rings: Sequence[tf.Tensor], number: tf.Tensor, *, but: Container[int] = ()) -> list[tf.Tensor]:
        """Return microbatch ``number``, one of the last ``depth + 1`` that were put in, without the values ``but``."""
        with tf.name_scope("stash"):
            pairs = enumerate(zip(self._rings, rings))
            return [p.get(ring, self.place(number)) for n, (p, ring) in pairs if n not in but]

    def whole(self, rings: Sequence[tf.Tensor], value: int) -> tf.Tensor:
        """Return all places of ``value``, stacked; ``place`` says where a microbatch is in it."""
        return self._rings[value].whole(rings[value])

    @property
    def _rings(self) -> list[Pieces]:
        return [Pieces(self.depth + 1, tuple(spec.shape), spec.dtype) for spec in self.specs if self.depth]

    def place(self, number: tf.Tensor) -> tf.Tensor:
        """Return which place microbatch ``number`` has."""
        return tf.math.floormod(number, self.depth + 1)
