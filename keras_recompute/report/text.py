"""A program's memory as text: tables on a terminal, plain lines where the output is piped."""

from __future__ import annotations

from typing import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from ..liveness import Program, reconcile
from ..liveness.reconcile import UNEXPLAINED
from ..sizes import format_bytes
from .rows import MemoryRow, category_rows, describe, summary_rows


def print_liveness(program: Program, console: Console | None = None, *, buffers: int = 10, title: str | None = None) -> None:
    """Print the figures of ``program``, what is alive at its peak, and how the sums agree with the compiler's."""
    console = console or Console()
    summary = _table(console, ["", ""])
    for row in summary_rows(program):
        summary.add_row(*row)
    _print(console, title or f"Memory of {program.name}", summary)

    shares = _table(console, ["category", "bytes", "share"], right=(1, 2))
    for category, count in category_rows(program):
        shares.add_row(category, format_bytes(count), f"{count / max(program.peak_bytes, 1):.0%}")
    _print(console, "Alive at the peak, by category", shares)

    largest = _table(console, ["bytes", "what", "category", "phase", "section"], right=(0,))
    for b in program.top_buffers(buffers):
        largest.add_row(format_bytes(b.size_bytes), describe(b), b.category, b.phase or "", b.section or "")
    _print(console, f"Largest {buffers} alive at the peak, step {program.peak_step:,}", largest)

    checked = _table(console, ["in bytes", "ours", "compiler's", "difference"], right=(1, 2, 3))
    rows = reconcile(program)
    for r in rows:
        checked.add_row(r.name, f"{r.ours:,}", f"{r.compilers:,}", f"{r.difference:,}")
    _print(console, "Held against the compiler's own sums", checked)
    for r in rows:
        if r.difference:
            console.print(f"{r.name}: {r.explanation}", highlight=False, style="" if r.explanation != UNEXPLAINED else "bold")


def print_memory(rows: Iterable[MemoryRow], console: Console | None = None, *, title: str = "Peak memory") -> None:
    """Print the predicted, compiled and measured figure side by side."""
    console = console or Console()
    table = _table(console, ["", "bytes", "over compiled"], right=(1, 2))
    for row in rows:
        over = row.over_compiled_bytes
        difference = "" if over is None else f"{'+' if over > 0 else '-' if over < 0 else ''}{format_bytes(abs(over))}"
        table.add_row(row.name, "not known" if row.bytes is None else format_bytes(row.bytes), difference)
    _print(console, title, table)


def _print(console: Console, title: str, table: Table) -> None:
    console.print()
    console.print(title, style="bold" if console.is_terminal else "", highlight=False, markup=False)
    console.print(table)


def _table(console: Console, columns: Sequence[str], *, right: Sequence[int] = ()) -> Table:
    """Return an empty table; without lines and colours where nobody looks at a terminal."""
    seen = console.is_terminal
    table = Table(
        box=box.SIMPLE_HEAD if seen else None, header_style="dim" if seen else "", pad_edge=False, show_header=any(columns)
    )
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number in right else "left", overflow="fold")
    return table
