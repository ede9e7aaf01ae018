"""Comparison of several plans of one network: a table, a figure, and the knee.

The knee is the plan after which more checkpoints save little. Of the peaks over the logarithm of
the number of sections, it is the one furthest below the straight line from the first to the last.
It depends on bytes alone, so it is the same on every machine.

Source: the discrete form of Satopaa et al. 2011, "Finding a Kneedle in a Haystack".
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from keras_recompute.atomic_files import atomic_write, ensure_folder
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.report.optional_imports import DRAWING, check_installed
from keras_recompute.sizes import format_bytes, parse_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SWEEP_NAMES = ("sweep.json", "sweep.png", "sweep.txt")
_PLAIN, _BAR, _KNEE = "#8C8C8C", "#56B4E9", "#0072B2"
_LINE, _MUTED, _GRID = "#222222", "#555555", "#E4E4E4"


@dataclass(frozen=True)
class SweepRow:
    """One plan: peaks in bytes, seconds per step (None if not run), and the largest batch."""

    plan: str
    checkpoints: int
    levels: int
    recompute: bool
    predicted_peak_bytes: int
    peak_bytes: int
    needed_bytes: int
    step_seconds: float | None
    largest_batch: int


def knee(rows: Sequence[SweepRow]) -> SweepRow | None:
    """Return the row at the knee, among rows that recompute.

    None for fewer than three numbers of checkpoints, or if there is no knee.
    """
    rows = sorted((row for row in rows if row.recompute), key=lambda row: row.checkpoints)
    # Two points have no knee.
    if len({row.checkpoints for row in rows}) < 3:
        return None
    at = [math.log2(row.checkpoints + 1) for row in rows]
    first, last = rows[0].peak_bytes, rows[-1].peak_bytes

    def below(number: int) -> float:
        share = (at[number] - at[0]) / (at[-1] - at[0])
        return first + share * (last - first) - rows[number].peak_bytes

    # The largest distance below the straight line.
    furthest = max(range(len(rows)), key=below)
    return rows[furthest] if below(furthest) > 0 else None


def sweep_table(rows: Sequence[SweepRow], capacity_bytes: int) -> str:
    """Return ``rows`` as a Markdown table in which the knee is marked."""
    timed = any(row.step_seconds is not None for row in rows)
    head = ["plan", "predicted peak", "compiled peak", *(["seconds per step"] if timed else [])]
    cells = [[*head, f"largest batch in {format_bytes(capacity_bytes)}"]]
    bend = knee(rows)
    for row in rows:
        line = [row.plan + (" (knee)" if row is bend else "")]
        line += [format_bytes(row.predicted_peak_bytes), format_bytes(row.peak_bytes)]
        if timed:
            line.append("" if row.step_seconds is None else f"{row.step_seconds:.3g}")
        cells.append([*line, str(row.largest_batch)])
    widths = [max(map(len, column)) for column in zip(*cells)]
    # The first column is aligned left, the numbers right, as the colons say.
    ruler = ["-" * widths[0]]
    for width in widths[1:]:
        ruler.append("-" * (width - 1) + ":")
    cells.insert(1, ruler)
    return "\n".join(_table_line(line, widths) for line in cells)


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    numbers = map(str.rjust, cells[1:], widths[1:])
    return f"| {' | '.join([cells[0].ljust(widths[0]), *numbers])} |"


def write_sweep(
    rows: Sequence[SweepRow], directory: str | os.PathLike[str], *, capacity_bytes: int, title: str
) -> tuple[Path, Path, Path]:
    """Write ``sweep.json``, ``sweep.png`` and ``sweep.txt`` into ``directory``; return their paths.

    The folder is created if it does not exist. Raises InvalidArgumentError without rows, and
    ReportError if a file cannot be written.
    """
    folder = ensure_folder(directory)
    data, figure, text = map(folder.joinpath, SWEEP_NAMES)
    bend = knee(rows)
    record = {
        "title": title,
        "capacity_bytes": capacity_bytes,
        "knee": None if bend is None else bend.plan,
        "rows": list(map(asdict, rows)),
    }
    with atomic_write(data) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sweep_figure(rows, figure, capacity_bytes=capacity_bytes, title=title)
    with atomic_write(text) as temporary:
        temporary.write_text(f"{title}\n\n{sweep_table(rows, capacity_bytes)}\n", encoding="utf-8")
    return data, figure, text


def sweep_figure(
    rows: Sequence[SweepRow], path: str | os.PathLike[str], *, capacity_bytes: int, title: str
) -> None:
    """Draw the peaks, largest batches and known seconds per step of ``rows`` as a PNG at ``path``.

    Raises InvalidArgumentError without rows, and ReportError if ``path`` cannot be written.
    """
    check_installed(DRAWING)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not rows:
        raise InvalidArgumentError("a sweep needs at least one plan, and none was given")
    unit = "MiB" if max(row.peak_bytes for row in rows) >= parse_bytes("1MiB") else "KiB"
    scale = parse_bytes(f"1{unit}")
    peaks, predicted, seconds, batches, names = [], [], [], [], []
    for row in rows:
        peaks.append(row.peak_bytes / scale)
        predicted.append(row.predicted_peak_bytes / scale)
        batches.append(float(row.largest_batch))
        names.append(str(row.checkpoints) if row.recompute else "no\nrecomputation")
        if row.step_seconds is not None:
            seconds.append(row.step_seconds)
    panels = [(f"peak as compiled ({unit})", peaks)]
    # Bars for some plans only could be taken for zeros.
    if len(seconds) == len(rows):
        panels.append(("seconds per step", seconds))
    panels.append((f"largest batch in {format_bytes(capacity_bytes)}", batches))
    height = 1.1 + 1.75 * len(panels)
    figure = Figure(figsize=(9, height), dpi=200, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    figure.subplots_adjust(
        left=0.075, right=0.985, top=1 - 0.75 / height, bottom=0.6 / height, hspace=0.42
    )
    bend = knee(rows)
    for axes, (name, values) in zip(grid[:, 0], panels):
        _bars(axes, name, values, rows, bend)
    top = grid[0, 0]
    top.plot(
        range(len(rows)),
        predicted,
        "_",
        markersize=26,
        markeredgewidth=1.6,
        color=_LINE,
        label="predicted",
    )
    top.legend(loc="upper right", frameon=False, fontsize=9)
    top.set_ylim(0, 1.22 * max(*predicted, *peaks))
    last = grid[-1, 0]
    last.set_xticks(range(len(rows)))
    last.set_xticklabels(names, fontsize=9)
    last.set_xlabel(
        "checkpoints" + (f", in {rows[-1].levels} levels" if rows[-1].levels > 1 else ""),
        fontsize=9,
        color=_MUTED,
    )
    figure.text(
        0.012, 1 - 0.12 / height, title, fontsize=13, fontweight="bold", color=_LINE, va="top"
    )
    with atomic_write(path) as temporary:
        # Without matplotlib's version in the file, equal plans give equal bytes.
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _bars(
    axes: Axes, name: str, values: Sequence[float], rows: Sequence[SweepRow], bend: SweepRow | None
) -> None:
    colours = []
    for row in rows:
        colour = _BAR if row.recompute else _PLAIN
        colours.append(_KNEE if row is bend else colour)
    axes.bar(range(len(rows)), values, width=0.62, color=colours)
    for at, (value, row) in enumerate(zip(values, rows)):
        text = f"{value:,.0f}" if value >= 99.5 or value == int(value) else f"{value:.3g}"
        axes.annotate(
            f"{text}, the knee" if row is bend and "peak" in name else text,
            (at, value),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            fontweight="bold" if row is bend else "normal",
            color=_LINE,
        )
    axes.set_title(name, loc="left", fontsize=10, color=_MUTED)
    axes.set_ylim(0, 1.22 * max(values) or 1)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", labelsize=9, colors=_MUTED, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)
