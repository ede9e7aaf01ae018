"""Differences between two programs, or between two steps of one, as plain rows."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidArgumentError
from ..liveness import Buffer, Program

GROUPINGS = ("category", "layer", "phase", "section", "lifetime")
UNNAMED = "(none)"


@dataclass(frozen=True)
class ChangeRow:
    """One figure of two programs; None where a program does not have it."""

    name: str
    before: int | None
    after: int | None

    @property
    def change(self) -> int | None:
        """After less before; None where one of them is not known."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def share(self) -> float | None:
        """The change as a share of what was there before; None where that is nothing."""
        return None if self.change is None or not self.before else self.change / self.before


def size_changes(before: Program, after: Program) -> list[ChangeRow]:
    """Return the figures in bytes of two programs, those that neither has left out."""
    names = {
        "peak": "peak_bytes",
        "always-live": "always_live_bytes",
        "not-always-live at the peak": "not_always_live_peak_bytes",
        "input feed, counted apart": "input_feed_bytes",
        "reserved by the allocator": "allocated_temporary_bytes",
        "fragmentation of it": "fragmentation_bytes",
    }
    rows = [
        ChangeRow(name, getattr(before, field), getattr(after, field))
        for name, field in names.items()
    ]
    return [row for row in rows if (row.before, row.after) != (None, None)]


def count_changes(before: Program, after: Program) -> list[ChangeRow]:
    """Return how many steps and instructions two programs have."""
    names = {"program steps": "program_steps", "program instructions": "program_instructions"}
    rows = [
        ChangeRow(name, getattr(before, field), getattr(after, field))
        for name, field in names.items()
    ]
    return [row for row in rows if (row.before, row.after) != (None, None)]


def peak_changes(before: Program, after: Program, by: str) -> list[ChangeRow]:
    """Return bytes alive at the peak of each program, grouped ``by``, the largest change first;
    they add up to the peaks.
    """
    sums = [dict(group_rows(program, program.peak_step, by)) for program in (before, after)]
    rows = [
        ChangeRow(name, *(s.get(name, 0) for s in sums)) for name in sorted({*sums[0], *sums[1]})
    ]
    return sorted(rows, key=lambda row: (-abs(row.change or 0), row.name))


def group_rows(program: Program, step: int, by: str) -> list[tuple[str, int]]:
    """Return (name, bytes) of what is alive at ``step``, grouped ``by`` one of GROUPINGS, largest
    first.

    What has no name in that grouping counts as UNNAMED, so the rows add up to all that is alive.
    Raises InvalidArgumentError for a step or a grouping that is not there.
    """
    if by not in GROUPINGS:
        raise InvalidArgumentError(
            f"buffers are grouped by one of {', '.join(GROUPINGS)}, not {by!r}"
        )
    sums: dict[str, int] = {}
    for buffer in live_at(program, step):
        name = getattr(buffer, by) or UNNAMED
        sums[name] = sums.get(name, 0) + buffer.size_bytes
    return sorted(sums.items(), key=lambda row: (-row[1], row[0]))


def live_at(program: Program, step: int) -> tuple[Buffer, ...]:
    """Return what is alive at ``step``, largest first. Raises InvalidArgumentError for a step that
    is not there.
    """
    if not 0 <= step < program.program_steps:
        raise InvalidArgumentError(
            f"step {step:,} is none of the {program.program_steps:,} steps, 0 to "
            f"{program.program_steps - 1:,}"
        )
    return program.live_at(step)
