"""What a pipeline stage keeps of a microbatch between its forward and its backward pass.

A stash is a queue of a fixed length: each forward pass puts one microbatch in and takes out the one that its backward
pass will read next. It is a ring of buffers, written in place, and the *popped* copy beside it. With depth 0 nothing
comes between the two passes: what is put in is what is taken out, and there is no ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ..engine.pieces import Pieces


@dataclass(frozen=True)
class Stash:
    """A queue of ``depth`` microbatches, each of which is one tensor per entry of ``specs``, of known shape."""

    depth: int
    specs: tuple[tf.TensorSpec, ...]

    @property
    def bytes_per_microbatch(self) -> int:
        """The size of what is kept of one microbatch."""
        return sum(spec.shape.num_elements() * spec.dtype.size for spec in self.specs)

    @property
    def ring_bytes(self) -> int:
        """The size of the ring; the popped copy is not in it."""
        return self.depth * self.bytes_per_microbatch

    def empty(self) -> list[tf.Tensor]:
        """Return a ring in which nothing has been put."""
        return [pieces.empty() for pieces in self._rings()]

    def exchange(
        self, rings: Sequence[tf.Tensor], values: Sequence[tf.Tensor], number: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Put ``values`` in as microbatch ``number``; return the rings and microbatch ``number - depth``."""
        if not self.depth:
            return [], list(values)
        place = tf.math.floormod(number, self.depth)
        with tf.name_scope("stash"):
            popped = [pieces.get(ring, place) for pieces, ring in zip(self._rings(), rings)]
            rings = [pieces.put(ring, place, value) for pieces, ring, value in zip(self._rings(), rings, values)]
        return rings, popped

    def _rings(self) -> list[Pieces]:
        return [Pieces(self.depth, tuple(spec.shape), spec.dtype) for spec in self.specs if self.depth]
