"""The plot of a comparison: time against measured memory, one line per main peer and a point per
number of checkpoints.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers import ON_DEVICE, PEERS

if TYPE_CHECKING:
    from comparison import Comparison

# Told apart by colour, in grey by line and marker. The colours are those of Okabe and Ito (2008).
STYLES = {
    "keras": ("#999999", "s", "-"),
    "recompute-grad": ("#CC79A7", "D", ":"),
    "jax": ("#E69F00", "^", "--"),
    "torch": ("#0072B2", "v", "-."),
    "ours-without-jit": ("#009E73", "P", "--"),
    "ours": ("#000000", "o", "-"),
}
_PLACES = [
    (math.cos(n * math.pi / 4) * 13, math.sin(n * math.pi / 4) * 11)
    for n in (1, 7, 3, 5, 2, 6, 0, 4)
]  # in points
_NEAR = 11  # points: labels and markers overlap if they are nearer


def plot(comparison: Comparison, path: Path) -> None:
    """Write the plot as a PNG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    labels = []
    for peer, (colour, marker, line) in STYLES.items():
        rows = [row for row in comparison.rows if row["peer"] == peer and row["measured_bytes"]]
        if rows:
            points = [(row["measured_bytes"] / 2**20, row["step_seconds"]) for row in rows]
            width, order = (2.5, 3) if peer == "ours" else (1.2, 2)
            axes.plot(
                *zip(*points),
                color=colour,
                marker=marker,
                ls=line,
                lw=width,
                ms=7,
                zorder=order,
                label=PEERS[peer].title,
            )
            labels += [(str(row["checkpoints"]), point) for row, point in zip(rows, points)]
    axes.set(xscale="log", yscale="log", xlabel=_memory(comparison), ylabel="seconds per step")
    axes.margins(0.08)
    for axis, subs, form in (
        (axes.xaxis, (1, 2, 5), "{x:.0f}"),
        (axes.yaxis, (1, 1.5, 2, 3, 5, 7), "{x:g}"),
    ):
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter(StrMethodFormatter(form))
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(
        f"{comparison.workload}: time and memory of a training step (numbers: checkpoints)"
    )
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.draw_without_rendering()  # settles where points are
    _annotate(axes, labels)
    figure.savefig(path, dpi=150)


def _memory(comparison: Comparison) -> str:
    on_device = any(row.get("measured_by") == ON_DEVICE for row in comparison.rows)
    return (
        "memory on the GPU over idle, MiB" if on_device else "memory of the process over idle, MiB"
    )


def _annotate(axes: Any, labels: list[tuple[str, tuple[float, float]]]) -> None:
    """Write each text beside its point, where it is farthest from other points and texts, or far
    enough.
    """
    from matplotlib.patheffects import withStroke

    points = [tuple(72 / axes.figure.dpi * axes.transData.transform(point)) for _, point in labels]
    taken = list(points)
    for (text, point), (x, y) in zip(labels, points):
        others = [other for other in taken if other != (x, y)]
        free = [
            min((math.dist((x + dx, y + dy), other) for other in others), default=_NEAR)
            for dx, dy in _PLACES
        ]
        best = max(range(len(_PLACES)), key=lambda n: min(free[n], _NEAR))
        dx, dy = _PLACES[best]
        place = {"textcoords": "offset points", "xytext": (dx, dy), "ha": "center", "va": "center"}
        axes.annotate(
            text,
            point,
            **place,
            fontsize=8,
            zorder=4,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
        taken.append((x + dx, y + dy))
