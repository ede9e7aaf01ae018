"""Figures of memory over program steps, of one program or of several on one scale.

They are drawn onto an Agg canvas, without a window or matplotlib's global state. The colours are
those of Okabe and Ito, which colour-blind readers can tell apart, lighter or darker so that they
stay apart in grey. The same program gives the same bytes with the same matplotlib.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Sequence

from ..atomic_files import atomic_write
from ..errors import InvalidArgumentError
from ..liveness import Program
from ..op_names import BACKWARD, FORWARD, PHASES, RECOMPUTE, UPDATE
from ..sizes import parse_bytes
from .optional_imports import DRAWING, check_installed
from .rows import phase_spans, printable, section_spans

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {FORWARD: "#A6D9F7", RECOMPUTE: "#E69F00", BACKWARD: "#B8568F", UPDATE: "#00694C"}
_FLOOR, _LINE, _GRID, _MUTED = "#8C8C8C", "#222222", "#E4E4E4", "#555555"
# Above this multiple of the peak, a capacity drawn to scale would flatten the curve. It is then
# written as text.
_CAPACITY_TO_SCALE = 2.5
_WIDTH_INCHES, _DPI = 9.0, 200
_STEPS = "program steps (the body of a loop counts once)"
_STRIPE_STEPS = 3  # in a picture, a run of no more steps within a phase belongs to that phase


def liveness_figure(
    program: Program,
    path: str | os.PathLike[str],
    *,
    capacity_bytes: int | None = None,
    title: str | None = None,
) -> None:
    """Draw the bytes that ``program`` holds over its steps, as a PNG at ``path``.

    An existing file is replaced. ``capacity_bytes`` is the memory of the device, by default the
    record's.

    Raises:
        ReportError: ``path`` cannot be written.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> kr.report.liveness_figure(program, "memory.png", title="A product")
    """
    _draw([(title or f"Memory of {program.name}", program)], path, capacity_bytes, None, _STEPS)


def comparison_figure(
    programs: Sequence[tuple[str, Program]],
    path: str | os.PathLike[str],
    *,
    capacity_bytes: int | None = None,
    title: str | None = None,
    steps: str = _STEPS,
) -> None:
    """Draw labelled programs side by side on one scale of bytes, as a PNG at ``path``.

    Changes are relative to the first. ``steps`` is the label of the axis of program steps.

    Raises:
        InvalidArgumentError: There is no program.
        ReportError: ``path`` cannot be written.

    Examples:
        >>> def f(x):
        ...     return tf.sin(x) @ x
        >>> small = kr.liveness.profile(f, tf.TensorSpec((64, 64)))
        >>> large = kr.liveness.profile(f, tf.TensorSpec((128, 128)))
        >>> kr.report.comparison_figure([("64", small), ("128", large)], "memory.png")
    """
    if not programs:
        raise InvalidArgumentError(
            "a comparison needs at least one (label, program), and none was given"
        )
    _draw(programs, path, capacity_bytes, title, steps)


def _draw(
    panels: Sequence[tuple[str, Program]],
    path: str | os.PathLike[str],
    capacity_bytes: int | None,
    title: str | None,
    steps: str,
) -> None:
    check_installed(DRAWING)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # One scale for all panels: that of the highest peak.
    programs = [program for _, program in panels]
    for program in programs:
        if capacity_bytes is None:
            capacity_bytes = program.capacity_bytes
    highest = max(p.peak_bytes for p in programs)
    to_scale = capacity_bytes is not None and capacity_bytes <= _CAPACITY_TO_SCALE * highest
    top = max(
        1.2 * highest, 1.1 * capacity_bytes if capacity_bytes is not None and to_scale else 0, 1
    )
    unit = "MiB" if top >= parse_bytes("1MiB") else "KiB"

    # Heights in inches: a headline per panel, the panels, the band of sections if any, axis and
    # legend.
    has_sections = any(map(section_spans, programs))
    above, below, height = 0.88 if title else 0.62, 0.92, 4.5 if title else 4.2
    figure = Figure(figsize=(_WIDTH_INCHES, height), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        2,
        len(panels),
        height_ratios=(1, 0.07 if has_sections else 0.001),
        hspace=0.03 if has_sections else 0,
        wspace=0.06,
        left=0.085,
        right=0.985,
        bottom=below / height,
        top=1 - above / height,
    )
    for column, (label, program) in enumerate(panels):
        axes = figure.add_subplot(grid[0, column])
        strip = figure.add_subplot(grid[1, column])
        _panel(axes, program, unit, top)
        _sections(strip, program, 1 / len(panels), steps)
        _headline(axes, label, program, unit, None if column == 0 else programs[0])
        if capacity_bytes is not None:
            _capacity(axes, capacity_bytes, unit, to_scale)
        if column == 0:
            axes.set_ylabel(f"bytes held ({unit})", fontsize=9, color=_MUTED)
        else:
            axes.set_yticklabels([])
    if title:
        figure.text(
            0.012,
            1 - 0.12 / height,
            _without_markup(title),
            fontsize=13,
            fontweight="bold",
            color=_LINE,
            va="top",
        )
    _legend(figure, programs)
    with atomic_write(path) as temporary:
        # Without matplotlib's version in the file, equal programs give equal bytes.
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _panel(axes: Axes, program: Program, unit: str, top: float) -> None:
    """Draw one program: its floor, the bytes above it coloured by phase, and the peak."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    unit_bytes = parse_bytes(f"1{unit}")
    floor = program.always_live_bytes / unit_bytes
    total = [bytes_ / unit_bytes for bytes_ in program.timeline.total_bytes]
    edges = range(len(total) + 1)
    axes.stairs([floor] * len(total), edges, fill=True, color=_FLOOR, linewidth=0)
    phases = phase_spans(program, shortest=min(_STRIPE_STEPS, len(total) // 32) + 1)
    for phase in PHASES:
        of_phase = [floor] * len(total)
        for span in phases:
            if span.name == phase:
                of_phase[span.first : span.last + 1] = total[span.first : span.last + 1]
        axes.stairs(of_phase, edges, baseline=floor, fill=True, color=COLOURS[phase], linewidth=0)
    axes.stairs(total, edges, baseline=None, color=_LINE, linewidth=0.9)

    peak, middle = program.peak_bytes / unit_bytes, program.peak_step + 0.5
    at = middle / len(total)
    # Not clipped, since the marker reaches over the edge at the first and last step.
    axes.plot([middle], [peak], marker="o", markersize=4.5, color=_LINE, clip_on=False, zorder=5)
    axes.annotate(
        f"peak {_amount(program.peak_bytes, unit)}",
        (middle, peak),
        xytext=(7 if at < 0.6 else -7, 5),
        textcoords="offset points",
        ha="left" if at < 0.6 else "right",
        fontsize=10,
        fontweight="bold",
        color=_LINE,
    )
    axes.set_xlim(0, len(total))
    axes.set_ylim(0, top / unit_bytes)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.4g}"))
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", labelsize=9, colors=_MUTED, length=0)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_visible(False)


def _sections(strip: Axes, program: Program, width: float, steps_label: str) -> None:
    """Draw the band below a panel that names the sections, and the axis of steps."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    steps = program.program_steps
    for number, span in enumerate(section_spans(program)):
        strip.axvspan(
            span.first, span.last + 1, color=("#D9D9D9", "#F0F0F0")[number % 2], linewidth=0
        )
        text = _fitting_text(span.name, width * span.steps / steps)
        strip.text(
            (span.first + span.last + 1) / 2,
            0.45,
            _without_markup(text),
            fontsize=7,
            color=_LINE,
            ha="center",
            va="center",
        )
    strip.set_xlim(0, steps)
    strip.set_ylim(0, 1)
    strip.set_yticks([])
    strip.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    strip.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    strip.tick_params(axis="x", labelsize=9, colors=_MUTED, length=3)
    strip.set_xlabel(steps_label, fontsize=9, color=_MUTED)
    for side in ("top", "right", "left"):
        strip.spines[side].set_visible(False)
    strip.spines["bottom"].set_color(_MUTED)


def _fitting_text(name: str, share: float) -> str:
    """Return the part of a section's name that fits ``share`` of the width, or nothing."""
    number = re.search(r"[0-9]+(?:-[0-9]+)*\Z", name)
    for text in (name, number.group() if number else ""):
        # The width of a character at this font size, as a share of the figure.
        if share > 0.0078 * len(text):
            return text
    return ""


def _without_markup(name: str) -> str:
    """Return ``name`` escaped for matplotlib, which typesets text between dollar signs."""
    return printable(name).replace("$", r"\$")


def _amount(count: int, unit: str) -> str:
    """Return bytes in the unit of the axis, so that all numbers in the figure are comparable."""
    value = count / parse_bytes(f"1{unit}")
    return f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"


def _headline(axes: Axes, label: str, program: Program, unit: str, first: Program | None) -> None:
    """Write the label of a panel, and the composition of its peak below."""
    change = ""
    if first is not None and first.peak_bytes:
        # A minus sign, which is wider than a hyphen.
        change = f": peak {program.peak_bytes / first.peak_bytes - 1:+.0%}".replace("-", "\u2212")
    always_live = _amount(program.always_live_bytes, unit)
    made_of = f"{always_live} always live + {_amount(program.not_always_live_peak_bytes, unit)} not"
    apart = (
        f"; input feed {_amount(program.input_feed_bytes, unit)} apart"
        if program.input_feed_bytes
        else ""
    )
    axes.text(
        0,
        1.085,
        _without_markup(label) + change,
        transform=axes.transAxes,
        fontsize=11,
        fontweight="bold",
        color=_LINE,
    )
    axes.text(0, 1.02, made_of + apart, transform=axes.transAxes, fontsize=8.5, color=_MUTED)


def _capacity(axes: Axes, capacity_bytes: int, unit: str, to_scale: bool) -> None:
    """Draw the capacity as a line if it is on the scale, else as text at the upper edge."""
    text, at = f"capacity {_amount(capacity_bytes, unit)}", capacity_bytes / parse_bytes(f"1{unit}")
    if not to_scale:
        axes.text(
            0.995,
            0.985,
            f"\u2191 {text}, above this scale",
            transform=axes.transAxes,
            fontsize=9,
            ha="right",
            va="top",
        )
        return
    axes.axhline(at, color=_LINE, linewidth=1.1, linestyle=(0, (5, 3)))
    axes.annotate(
        text,
        (1, at),
        xycoords=("axes fraction", "data"),
        xytext=(-3, 4),
        textcoords="offset points",
        fontsize=9,
        ha="right",
        color=_LINE,
        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
    )


def _legend(figure: Any, programs: Sequence[Program]) -> None:
    """Draw the legend of the colours in use, under the panels."""
    from matplotlib.patches import Patch

    used = {span.name for program in programs for span in phase_spans(program)}
    patches = [Patch(color=_FLOOR, label="always-live")] + [
        Patch(color=COLOURS[p], label=p) for p in PHASES if p in used
    ]
    figure.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0.075, -0.005),
        ncol=len(patches),
        frameon=False,
        fontsize=9,
    )
