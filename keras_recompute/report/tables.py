"""Tables of the command line: of several reports, of two compared, or of one step."""

from __future__ import annotations

from typing import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from ..liveness import Program
from ..sizes import format_bytes
from .diff import UNNAMED, ChangeRow, count_changes, group_rows, live_at, peak_changes, size_changes
from .rows import describe
from .sparkline import sparkline
from .text import add_row, curve_signs, print_curve, print_table, table

_CURVE_AT_MOST, _CURVE_AT_LEAST = 40, 10
# Below the first a share is shown as no change, from the second on as a factor and no percentage.
_SHARE_AT_LEAST, _TIMES_FROM = 0.005, 10


def print_overview(programs: Sequence[tuple[str, Program]], console: Console) -> None:
    """Print one line per labelled program, with their curves on one scale."""
    top = max(program.peak_bytes for _, program in programs)
    names = max(len(label) for label, _ in programs)
    # The other columns take 32 characters.
    width = max(min(console.width - names - 32, _CURVE_AT_MOST), _CURVE_AT_LEAST)
    rows = table(
        console, ["report", "peak", "always-live", "steps", "memory over steps"], right=(1, 2, 3)
    )
    for label, program in programs:
        curve = sparkline(
            program.timeline.total_bytes, width=width, top=top, blocks=curve_signs(console)
        )
        sizes = format_bytes(program.peak_bytes), format_bytes(program.always_live_bytes)
        add_row(rows, label, *sizes, f"{program.program_steps:,}", curve)
    print_table(console, f"{len(programs)} reports", rows)


def print_comparison(
    before: tuple[str, Program],
    after: tuple[str, Program],
    console: Console,
    *,
    by: str = "category",
    rows: int = 10,
) -> None:
    """Print the changes from one labelled program to another: figures, curves and peaks."""
    (_, a), (_, b) = before, after
    figures = table(console, ["", "A", "B", "change", ""], right=(1, 2, 3, 4))
    for row in size_changes(a, b):
        add_row(figures, row.name, *_size(row))
    for row in count_changes(a, b):
        add_row(
            figures,
            row.name,
            _number(row.before),
            _number(row.after),
            _number(row.change, signed=True),
            _share(row),
        )
    print_table(console, f"{before[0]}, {after[0]}", figures)

    top = max(a.peak_bytes, b.peak_bytes)
    for label, program in (before, after):
        console.print()
        console.print(
            label, highlight=False, markup=False, no_wrap=True, overflow="ellipsis", end=""
        )
        print_curve(program, console, top=top)

    changes = peak_changes(a, b, by)
    shown = table(console, [by, "A", "B", "change", ""], right=(1, 2, 3, 4))
    for row in changes[:rows]:
        add_row(shown, row.name, *_size(row))
    if changes[rows:]:
        rest = changes[rows:]
        before_bytes = after_bytes = 0
        for row in rest:
            before_bytes += row.before or 0
            after_bytes += row.after or 0
        add_row(shown, f"{len(rest):,} more", *_size(ChangeRow("", before_bytes, after_bytes)))
    print_table(console, f"Alive at the peaks, by {by}", shown)


def print_buffers(program: Program, console: Console, *, step: int, rows: int = 10) -> None:
    """Print the largest buffers alive at ``step``, and the sum of the others."""
    live = live_at(program, step)
    shown = table(console, ["bytes", "what", "category", "phase", "section", "steps"], right=(0,))
    for b in live[:rows]:
        steps = f"{b.first_step:,}-{b.last_step:,}"
        add_row(
            shown,
            format_bytes(b.size_bytes),
            describe(b),
            b.category,
            b.phase or "",
            b.section or "",
            steps,
        )
    _rest(shown, [b.size_bytes for b in live[rows:]], columns=6)
    print_table(console, _at(program, step, len(live)), shown)


def print_groups(program: Program, console: Console, *, step: int, by: str, rows: int = 10) -> None:
    """Print the bytes alive at ``step``, grouped ``by`` one of GROUPINGS."""
    groups = group_rows(program, step, by)
    total = sum(count for _, count in groups)
    shown = table(console, ["bytes", "share", by], right=(0, 1))
    for name, count in groups[:rows]:
        add_row(shown, format_bytes(count), f"{count / max(total, 1):.0%}", name)
    _rest(shown, [count for _, count in groups[rows:]], columns=3)
    print_table(console, _at(program, step, len(live_at(program, step))), shown)


def _rest(rows: Table, sizes: Iterable[int], *, columns: int) -> None:
    sizes = list(sizes)
    if sizes:
        words = [format_bytes(sum(sizes)), f"in {len(sizes):,} more"]
        cells = words if columns > 3 else [words[0], "", words[1]]
        add_row(rows, *cells, *[""] * (columns - len(cells)))


def _at(program: Program, step: int, count: int) -> str:
    where = program.steps[step]
    named = ", ".join(filter(None, (where.phase, where.section, where.layer))) or UNNAMED
    held = format_bytes(program.timeline.total_bytes[step])
    peak = ", the peak" if step == program.peak_step else ""
    return (
        f"Step {step:,} of {program.program_steps:,}{peak}: {held} in {count:,} buffers ({named})"
    )


def _size(row: ChangeRow) -> tuple[str, str, str, str]:
    return _bytes(row.before), _bytes(row.after), _bytes(row.change, signed=True), _share(row)


def _bytes(count: int | None, *, signed: bool = False) -> str:
    if count is None:
        return "not known"
    return ("+" if count > 0 else "-" if count < 0 else "") * signed + format_bytes(
        abs(count) if signed else count
    )


def _number(count: int | None, *, signed: bool = False) -> str:
    return "not known" if count is None else f"{count:+,}" if signed and count else f"{count:,}"


def _share(row: ChangeRow) -> str:
    if row.share is None or abs(row.share) < _SHARE_AT_LEAST:
        return ""
    return f"{row.share:+.0%}" if abs(row.share) < _TIMES_FROM else f"{row.share + 1:,.0f} times"
