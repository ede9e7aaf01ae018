"""A program's memory as text: tables on a terminal, plain lines in a pipe."""

from __future__ import annotations

from typing import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..liveness import Program, reconcile
from ..liveness.reconcile import UNEXPLAINED
from ..sizes import format_bytes
from .rows import MemoryRow, category_rows, describe, printable, summary_rows
from .sparkline import ASCII, BLOCKS, initials, sparkline

_CURVE_MARGIN = 8  # "memory  "


def print_liveness(
    program: Program, console: Console | None = None, *, buffers: int = 10, title: str | None = None
) -> None:
    """Print the figures of ``program``, its peak, and their comparison with the compiler's totals.

    Args:
        program: The record.
        console: Where to print; by default the standard output.
        buffers: How many of the largest buffers to list.
        title: The heading.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> kr.report.print_liveness(program, title="A product")
        <BLANKLINE>
        A product
        peak ... KiB
        ...
    """
    console = console or Console()
    summary = table(console, ["", ""])
    for row in summary_rows(program):
        add_row(summary, *row)
    print_table(console, title or f"Memory of {program.name}", summary)
    print_curve(program, console)

    shares = table(console, ["category", "bytes", "share"], right=(1, 2))
    for category, count in category_rows(program):
        add_row(shares, category, format_bytes(count), f"{count / max(program.peak_bytes, 1):.0%}")
    print_table(console, "Alive at the peak, by category", shares)

    largest = table(console, ["bytes", "what", "category", "phase", "section"], right=(0,))
    for b in program.top_buffers(buffers):
        add_row(
            largest,
            format_bytes(b.size_bytes),
            describe(b),
            b.category,
            b.phase or "",
            b.section or "",
        )
    print_table(
        console, f"Largest {buffers} alive at the peak, step {program.peak_step:,}", largest
    )

    checked = table(console, ["in bytes", "ours", "compiler's", "difference"], right=(1, 2, 3))
    rows = reconcile(program)
    for r in rows:
        add_row(checked, r.name, f"{r.ours:,}", f"{r.compilers:,}", f"{r.difference:,}")
    print_table(console, "Compared with the compiler's own sums", checked)
    for r in rows:
        if r.difference:
            console.print(
                f"{r.name}: {r.explanation}",
                highlight=False,
                style="" if r.explanation != UNEXPLAINED else "bold",
            )


def print_memory(
    rows: Iterable[MemoryRow], console: Console | None = None, *, title: str = "Peak memory"
) -> None:
    """Print the predicted, compiled and measured peak side by side.

    Examples:
        >>> kib = 2**10
        >>> rows = kr.report.memory_rows(predicted=11 * kib, compiled=10 * kib, measured=9 * kib)
        >>> kr.report.print_memory(rows)
        <BLANKLINE>
        Peak memory
                                    bytes  over compiled
        predicted by the plan    11.0 KiB      +1.00 KiB
        compiled                 10.0 KiB            0 B
        measured in the process  9.00 KiB      -1.00 KiB
    """
    console = console or Console()
    figures = table(console, ["", "bytes", "over compiled"], right=(1, 2))
    for row in rows:
        over = row.over_compiled_bytes
        difference = (
            ""
            if over is None
            else f"{'+' if over > 0 else '-' if over < 0 else ''}{format_bytes(abs(over))}"
        )
        add_row(
            figures,
            row.name,
            "not known" if row.bytes is None else format_bytes(row.bytes),
            difference,
        )
    print_table(console, title, figures)


def print_curve(program: Program, console: Console, *, top: int | None = None) -> None:
    """Print the bytes held as a curve from 0 to ``top``, with known phases under it."""
    width = console.width - _CURVE_MARGIN
    blocks = curve_signs(console)
    phases = initials([step.phase for step in program.steps], width=width)
    console.print()
    _print_line(
        console,
        "memory  " + sparkline(program.timeline.total_bytes, width=width, top=top, blocks=blocks),
    )
    if phases.strip():
        _print_line(console, "phase   " + phases)


def curve_signs(console: Console) -> str:
    """Return the characters of curves: blocks on a terminal that has them, else ASCII."""
    return BLOCKS if console.is_terminal and not console.options.ascii_only else ASCII


def print_table(console: Console, title: str, rows: Table) -> None:
    """Print a table under its title."""
    console.print()
    console.print(
        printable(title), style="bold" if console.is_terminal else "", highlight=False, markup=False
    )
    console.print(rows)


def table(console: Console, columns: Sequence[str], *, right: Sequence[int] = ()) -> Table:
    """Return an empty table, without lines and colours outside of a terminal."""
    # Piped output has neither lines nor colours, for tools that read it.
    seen = console.is_terminal
    rows = Table(
        box=box.SIMPLE_HEAD if seen else None,
        header_style="dim" if seen else "",
        pad_edge=False,
        show_header=any(columns),
    )
    for number, name in enumerate(columns):
        if number in right:
            rows.add_column(name, justify="right", no_wrap=True)
        else:
            rows.add_column(name, overflow="fold")
    return rows


def add_row(rows: Table, *cells: str) -> None:
    """Add a row of plain text: names are no markup and cannot move the cursor."""
    rows.add_row(*(Text(printable(cell)) for cell in cells))


def _print_line(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, no_wrap=True, overflow="crop")
