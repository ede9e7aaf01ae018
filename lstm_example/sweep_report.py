"""Comparison of several plans of one network: a table, a figure, and the knee.

The knee is the plan after which more checkpoints save little. Of the peaks over the logarithm of
the number of sections, it is the one furthest below the straight line from the first to the last.
It depends on bytes alone, so it is the same on every machine.

Source: the discrete form of Satopaa et al. 2011, "Finding a Kneedle in a Haystack".
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from keras_recompute.atomic_files import PathLike, atomic_write, ensure_folder
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
    first, last = rows[0], rows[-1]
    slope = (last.peak_bytes - first.peak_bytes) / (_sections(last) - _sections(first))

    def below(row: SweepRow) -> float:
        line = first.peak_bytes + slope * (_sections(row) - _sections(first))
        return line - row.peak_bytes

    # The largest distance below the straight line.
    furthest = max(rows, key=below)
    return furthest if below(furthest) > 0 else None


def _sections(row: SweepRow) -> float:
    return math.log2(row.checkpoints + 1)


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
    columns = []
    for number, (name, *values) in enumerate(zip(*cells)):
        width = max(map(len, [name, *values]))
        # The first column is aligned left, the numbers right, as the colons say.
        align, end = (str.rjust, ":") if number else (str.ljust, "-")
        ruler = "-" * (width - 1) + end
        columns.append([align(cell, width) for cell in (name, ruler, *values)])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns))


def write_sweep(
    rows: Sequence[SweepRow], directory: PathLike, *, capacity_bytes: int, title: str
) -> list[Path]:
    """Write ``sweep.json``, ``sweep.png`` and ``sweep.txt`` into ``directory``; return their paths.

    The folder is created if it does not exist. Raises InvalidArgumentError without rows, and
    ReportError if a file cannot be written.
    """
    paths = list(map(ensure_folder(directory).joinpath, SWEEP_NAMES))
    bend = knee(rows)
    record = {
        "title": title,
        "capacity_bytes": capacity_bytes,
        "knee": bend and bend.plan,
        "rows": list(map(asdict, rows)),
    }
    with atomic_write(paths[0]) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sweep_figure(rows, paths[1], capacity_bytes=capacity_bytes, title=title)
    with atomic_write(paths[2]) as temporary:
        temporary.write_text(f"{title}\n\n{sweep_table(rows, capacity_bytes)}\n", encoding="utf-8")
    return paths


def sweep_figure(
    rows: Sequence[SweepRow], path: PathLike, *, capacity_bytes: int, title: str
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
    panels = {f"peak as compiled ({unit})": [row.peak_bytes / scale for row in rows]}
    seconds = [row.step_seconds for row in rows if row.step_seconds is not None]
    # Bars for some plans only could be taken for zeros.
    if len(seconds) == len(rows):
        panels["seconds per step"] = seconds
    batches = [float(row.largest_batch) for row in rows]
    panels[f"largest batch in {format_bytes(capacity_bytes)}"] = batches
    figure = Figure(
        figsize=(9, 1.1 + 1.75 * len(panels)), dpi=200, facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), 1, sharex=True)
    for axes, (name, values) in zip(grid, panels.items()):
        _bars(axes, name, values, rows)
    predicted = [row.predicted_peak_bytes / scale for row in rows]
    style = {"markersize": 26, "markeredgewidth": 1.6, "color": _LINE}
    grid[0].plot(range(len(rows)), predicted, "_", label="predicted", **style)
    grid[0].legend(loc="upper right", frameon=False, fontsize=9)
    grid[0].set_ylim(0, 1.22 * max(*predicted, grid[0].dataLim.ymax))
    names = [str(row.checkpoints) if row.recompute else "no\nrecomputation" for row in rows]
    grid[-1].set_xticks(range(len(rows)), names)
    levels = f", in {rows[-1].levels} levels" if rows[-1].levels > 1 else ""
    grid[-1].set_xlabel(f"checkpoints{levels}", fontsize=9, color=_MUTED)
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold", color=_LINE)
    with atomic_write(path) as temporary:
        # Without matplotlib's version in the file, equal plans give equal bytes.
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _bars(axes: Axes, name: str, values: Sequence[float], rows: Sequence[SweepRow]) -> None:
    """Draw a bar for each row, with its value above it."""
    colours, texts, bend = [], [], knee(rows)
    for row, value in zip(rows, values):
        colour = _BAR if row.recompute else _PLAIN
        colours.append(_KNEE if row is bend else colour)
        text = f"{value:,.0f}" if value >= 99.5 or value == int(value) else f"{value:.3g}"
        texts.append(f"{text}, the knee" if row is bend and "peak" in name else text)
    bars = axes.bar(range(len(rows)), values, width=0.62, color=colours)
    axes.bar_label(bars, texts, padding=4, fontsize=9, color=_LINE)
    axes.set_title(name, loc="left", fontsize=10, color=_MUTED)
    axes.set_ylim(0, 1.22 * max(values) or 1)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=_MUTED, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)
