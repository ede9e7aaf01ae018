"""An estimate of a compiled program's bytes by IPU and by tile.

XLA places nothing on tiles, so the figures are derived. The buffers of a layer are on the IPU of
its pipeline stage. Bytes of no layer are shared evenly among the IPUs. On an IPU all bytes are
spread evenly over its tiles, except the tiles reserved for input and output, which hold nothing.
The sums over IPUs and tiles are exactly the program's figures. A real IPU differs: there the
fullest tile decides. Loads no TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from operator import add
from typing import Mapping, Sequence

from ...liveness import Buffer, Profile
from ...liveness.program import ALWAYS_LIVE, RESULT, TEMPORARY, held_per_step

NOTE = (
    "bytes are those of the program that XLA compiled: a layer's are on the IPU of its pipeline "
    "stage, all others are shared evenly among the IPUs, and an IPU's bytes are spread evenly "
    "over its tiles"
)


@dataclass(frozen=True)
class Placement:
    """The IPU of each layer by name, and each IPU's tiles reserved for input and output."""

    ipu_of_layer: Mapping[str, int] = field(default_factory=dict)
    io_tiles: int = 0

    def ipu_of(self, layer: str | None) -> int | None:
        """Return the IPU of a layer, or of the outermost model around it that has one.

        ``layer`` may be a path through models, such as ``"net/lstm"``.
        """
        for part in (layer or "").split("/"):
            if part in self.ipu_of_layer:
                return self.ipu_of_layer[part]
        return None


@dataclass(frozen=True)
class TileEstimate:
    """The bytes of a profile by IPU and by tile.

    IPUs, tiles and steps are numbered from 0.
    """

    profile: Profile
    placement: Placement = Placement()

    @property
    def ipus(self) -> int:
        """Number of IPUs."""
        return self.profile.target.ipus

    @property
    def compute_tiles(self) -> int:
        """Tiles of one IPU that hold the model."""
        return self.profile.target.tiles_per_ipu - self.placement.io_tiles

    @property
    def capacity_bytes(self) -> int:
        """Memory of one IPU's tiles that hold the model."""
        return self.compute_tiles * self.profile.target.bytes_per_tile

    @cached_property
    def always_live_bytes(self) -> tuple[int, ...]:
        """Always-live bytes of each IPU."""
        known = []
        for buffers in self._buffers_by_ipu:
            known.append(sum(b.size_bytes for b in buffers if b.lifetime == ALWAYS_LIVE))
        return tuple(_with_rest(known, self.profile.program.always_live_bytes))

    @cached_property
    def not_always_live_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Not-always-live bytes of each IPU at each program step."""
        steps = self.profile.program.steps
        known = [
            held_per_step(buffers, (TEMPORARY, RESULT), len(steps))
            for buffers in self._buffers_by_ipu
        ]
        shared = []
        for n, step in enumerate(steps):
            known_at_step = [held[n] for held in known]
            shared.append(_with_rest(known_at_step, step.not_always_live_bytes))
        return tuple(zip(*shared))

    def peak_bytes(self, ipu: int) -> int:
        """Return always-live plus the largest not-always-live bytes of an IPU."""
        return self.always_live_bytes[ipu] + max(self.not_always_live_bytes[ipu])

    def on_tile(self, tile: int, by_ipu: Sequence[int]) -> int:
        """Return the share of ``tile``, numbered over all IPUs, of the bytes given by IPU."""
        ipu, number = divmod(tile, self.profile.target.tiles_per_ipu)
        if number >= self.compute_tiles:
            return 0
        # The first tiles hold one byte more, so that the sum is exact.
        each, rest = divmod(by_ipu[ipu], self.compute_tiles)
        return each + (number < rest)

    @cached_property
    def _buffers_by_ipu(self) -> list[list[Buffer]]:
        """The buffers of each IPU's layers."""
        found: list[list[Buffer]] = [[] for _ in range(self.ipus)]
        for buffer in self.profile.program.buffers:
            ipu = self.placement.ipu_of(buffer.layer)
            if ipu is not None and ipu < self.ipus:
                found[ipu].append(buffer)
        return found


def even_shares(total: int, count: int) -> list[int]:
    """Return ``count`` numbers that differ by at most one and sum to ``total``."""
    each, rest = divmod(total, count)
    return [each + (number < rest) for number in range(count)]


def _with_rest(known: Sequence[int], total: int) -> list[int]:
    """Return ``known`` adjusted to sum to ``total``.

    A missing rest is shared evenly. An excess is removed in proportion to ``known``.
    """
    rest = total - sum(known)
    if rest >= 0:
        return list(map(add, known, even_shares(rest, len(known))))
    scaled = [amount * total // sum(known) for amount in known]
    return list(map(add, scaled, even_shares(total - sum(scaled), len(known))))
