"""Bytes over program steps, and the sums that reconcile them with the buffers they come from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Container, Iterable

if TYPE_CHECKING:
    from .program import Buffer


@dataclass(frozen=True)
class Timeline:
    """Bytes held by a program: a floor that is always there, and what comes on top at each program step."""

    always_live_bytes: int
    input_feed_bytes: int
    not_always_live_bytes: tuple[int, ...]

    @property
    def not_always_live_peak_bytes(self) -> int:
        """Largest value over the steps."""
        return max(self.not_always_live_bytes)

    @property
    def peak_step(self) -> int:
        """The first step at which the largest value is reached."""
        return self.not_always_live_bytes.index(self.not_always_live_peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Always-live bytes plus the largest not-always-live value."""
        return self.always_live_bytes + self.not_always_live_peak_bytes

    @property
    def total_bytes(self) -> tuple[int, ...]:
        """Always-live plus not-always-live bytes at each step."""
        return tuple(self.always_live_bytes + bytes_ for bytes_ in self.not_always_live_bytes)


def held_per_step(buffers: Iterable[Buffer], lifetimes: Container[str], steps: int) -> list[int]:
    """Return the bytes that the buffers of the given ``lifetimes`` hold at each of ``steps`` steps."""
    change = [0] * (steps + 1)
    for buffer in buffers:
        if buffer.lifetime in lifetimes:
            change[buffer.first_step] += buffer.size_bytes
            change[buffer.last_step + 1] -= buffer.size_bytes
    return list(accumulate(change))[:steps]
