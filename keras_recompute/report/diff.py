"""Differences between two programs, as plain rows, and sums of what is alive at one step."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidArgumentError
from ..liveness import Buffer, Program

GROUPINGS = ("category", "layer", "phase", "section", "lifetime")
UNNAMED = "(none)"


@dataclass(frozen=True)
class ChangeRow:
    """One figure of two programs; None where a program lacks it."""

    name: str
    before: int | None
    after: int | None

    @property
    def change(self) -> int | None:
        """After minus before; None if either is unknown."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def share(self) -> float | None:
        """The change relative to the value before; None if that is zero or unknown."""
        return None if self.change is None or not self.before else self.change / self.before


def size_changes(before: Program, after: Program) -> list[ChangeRow]:
    """Return the sizes in bytes that at least one of two programs has."""
    names = {
        "peak": "peak_bytes",
        "always-live": "always_live_bytes",
        "not-always-live at the peak": "not_always_live_peak_bytes",
        "input feed, counted apart": "input_feed_bytes",
        "reserved by the allocator": "allocated_temporary_bytes",
        "fragmentation of it": "fragmentation_bytes",
    }
    return _changes(before, after, names)


def count_changes(before: Program, after: Program) -> list[ChangeRow]:
    """Return the numbers of steps and instructions of two programs."""
    names = {"program steps": "program_steps", "program instructions": "program_instructions"}
    return _changes(before, after, names)


def _changes(before: Program, after: Program, fields: dict[str, str]) -> list[ChangeRow]:
    rows = []
    for name, field in fields.items():
        row = ChangeRow(name, getattr(before, field), getattr(after, field))
        if (row.before, row.after) != (None, None):
            rows.append(row)
    return rows


def peak_changes(before: Program, after: Program, by: str) -> list[ChangeRow]:
    """Return the bytes alive at each program's peak, grouped ``by``, largest change first.

    They add up to the peaks.
    """
    at_peak = dict(group_rows(before, before.peak_step, by))
    later = dict(group_rows(after, after.peak_step, by))
    names = {*at_peak, *later}
    rows = [ChangeRow(name, at_peak.get(name, 0), later.get(name, 0)) for name in names]
    return sorted(rows, key=lambda row: (-abs(row.change or 0), row.name))


def group_rows(program: Program, step: int, by: str) -> list[tuple[str, int]]:
    """Return (name, bytes) alive at ``step``, grouped ``by`` one of GROUPINGS, largest first.

    What has no name in that grouping counts as UNNAMED, so the rows add up to all that is alive.
    Raises InvalidArgumentError for an unknown step or grouping.
    """
    if by not in GROUPINGS:
        raise InvalidArgumentError(
            f"buffers cannot be grouped by {by!r}: give one of {', '.join(GROUPINGS)}"
        )
    sums: dict[str, int] = {}
    for buffer in live_at(program, step):
        name = getattr(buffer, by) or UNNAMED
        sums[name] = sums.get(name, 0) + buffer.size_bytes
    return sorted(sums.items(), key=lambda row: (-row[1], row[0]))


def live_at(program: Program, step: int) -> tuple[Buffer, ...]:
    """Return the buffers alive at ``step``, largest first, or raise InvalidArgumentError."""
    if not 0 <= step < program.program_steps:
        raise InvalidArgumentError(
            f"step {step:,} is not one of the {program.program_steps:,} steps, 0 to "
            f"{program.program_steps - 1:,}"
        )
    return program.live_at(step)
