"""Pictures: that they are drawn, whole, the same each time, and with the figures that matter
written in them.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from keras_recompute.errors import InvalidArgumentError, ReportError
from keras_recompute.report import comparison_figure, liveness_figure
from keras_recompute.report import figures as drawing

MIB = 2**20


def size(path) -> tuple[int, int]:
    """Return width and height of a PNG in pixels."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.fixture
def figures(monkeypatch):
    """Collect the figures that are drawn."""
    from matplotlib.figure import Figure

    found: list[Figure] = []
    save = Figure.savefig

    def collect(figure, *arguments, **options):
        found.append(figure)
        return save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", collect)
    return found


def texts(figures) -> set[str]:
    """Return every text of the figures."""
    from matplotlib.text import Text

    return {text.get_text() for figure in figures for text in figure.findobj(Text)}


def test_phases_stay_apart_in_grey_and_are_the_page_s():
    page = (Path(drawing.__file__).parent / "page" / "chart.js").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("const PHASE_COLOURS")]
    assert dict(re.findall(r'(\w+): "(#\w+)"', line)) == {
        phase: colour.lower() for phase, colour in drawing.COLOURS.items()
    }
    greys = []
    for colour in drawing.COLOURS.values():
        red, green, blue = bytes.fromhex(colour[1:])
        greys.append(0.299 * red + 0.587 * green + 0.114 * blue)  # of 255; ITU-R BT.601
    # From forward to update they get darker.
    assert min(a - b for a, b in zip(greys, greys[1:])) > 30


def test_a_picture_says_what_matters(program, tmp_path, figures):
    liveness_figure(program, tmp_path / "one.png", title="LSTM, 1 checkpoint")
    assert size(tmp_path / "one.png") == (1800, 840)
    for text in (
        "LSTM, 1 checkpoint",
        "peak 50.0 MiB",
        "10.0 MiB always live + 40.0 MiB not; input feed 64.0 MiB apart",
        "capacity 100 MiB",
        "section-0",
        "section-1",
        "always-live",
        "forward",
        "recompute",
        "backward",
        "update",
        "bytes held (MiB)",
        "program steps (the body of a loop counts once)",
    ):
        assert text in texts(figures)


def test_names_are_shown_as_they_are(program, tmp_path, figures):
    """Between two dollar signs matplotlib reads a formula, and raises where it is none."""
    odd = "$x_{$ \\$ \\frac$"
    steps = tuple(dataclasses.replace(step, section=odd) for step in program.steps)
    record = dataclasses.replace(program, name=odd, steps=steps)
    liveness_figure(record, tmp_path / "one.png", title=odd + "\ud800\n")
    comparison_figure([(odd, record), (odd, record)], tmp_path / "two.png")
    escaped = odd.replace("$", "\\$")  # matplotlib shows "\\$" as "$"
    assert {escaped, escaped + "\\ud800\\n"} <= texts(figures)


def test_a_capacity_far_above_is_written(program, tmp_path, figures):
    liveness_figure(program, tmp_path / "one.png", capacity_bytes=16 * 1024 * MIB)
    assert "\u2191 capacity 16,384 MiB, above this scale" in texts(figures)


def test_a_small_program_is_drawn_in_kib(program, tmp_path, figures):
    steps = tuple(
        dataclasses.replace(s, not_always_live_bytes=s.not_always_live_bytes // MIB * 1024)
        for s in program.steps
    )
    liveness_figure(
        dataclasses.replace(program, steps=steps, buffers=(), capacity_bytes=None),
        tmp_path / "one.png",
    )
    assert "peak 40.0 KiB" in texts(figures)


def test_a_comparison_has_one_scale_and_says_the_change(program, tmp_path, figures):
    half = dataclasses.replace(
        program,
        steps=tuple(
            dataclasses.replace(s, not_always_live_bytes=s.not_always_live_bytes // 2)
            for s in program.steps
        ),
    )
    comparison_figure(
        [("0 checkpoints", program), ("1 checkpoint", half)],
        tmp_path / "two.png",
        title="The same model",
    )
    (before, _, after, _) = figures[0].axes  # each above its band of sections
    assert before.get_ylim() == after.get_ylim()
    assert before.get_ylim()[1] >= 50, "the largest peak fits, in MiB"
    # (10 + 20) / (10 + 40) - 1
    shown = {
        "The same model",
        "0 checkpoints",
        "1 checkpoint: peak \u221240%",
        "peak 50.0 MiB",
        "peak 30.0 MiB",
    }
    assert shown <= texts(figures)


def test_the_same_program_gives_the_same_bytes(program, tmp_path):
    comparison_figure([("a", program), ("b", program)], tmp_path / "1.png")
    comparison_figure([("a", program), ("b", program)], tmp_path / "2.png")
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()
    assert b"Software" not in (tmp_path / "1.png").read_bytes()
    assert b"tIME" not in (tmp_path / "1.png").read_bytes()


@pytest.mark.parametrize(("steps_behind", "shown"), [(1, "sections-1-6"), (20, "1-6"), (100, None)])
def test_a_narrow_section_is_named_by_its_numbers(program, tmp_path, figures, steps_behind, shown):
    section, rest = (
        dataclasses.replace(program.steps[0], section=name) for name in ("sections-1-6", None)
    )
    record = dataclasses.replace(program, steps=(section, *[rest] * steps_behind), buffers=())
    liveness_figure(record, tmp_path / "one.png")
    assert {"sections-1-6", "1-6"} & texts(figures) == ({shown} if shown else set())


def test_one_step_and_no_bytes_can_be_drawn(program, tmp_path):
    step = dataclasses.replace(program.steps[0], not_always_live_bytes=0)
    liveness_figure(
        dataclasses.replace(program, steps=(step,), buffers=(), capacity_bytes=0),
        tmp_path / "one.png",
    )
    assert (tmp_path / "one.png").exists()


def test_pyplot_stays_unloaded(tmp_path):
    code = (
        "import sys; from keras_recompute.liveness import Program, Step; from "
        "keras_recompute.report import liveness_figure; liveness_figure(Program('p', 'hand', "
        f"(Step('a', 1),), ()), {str(tmp_path / 'one.png')!r}); assert 'matplotlib.pyplot' not in "
        "sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_to_compare_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="at least one"):
        comparison_figure([], tmp_path / "none.png")


def test_a_folder_that_is_not_there_is_refused(program, tmp_path):
    with pytest.raises(ReportError, match="cannot be written"):
        liveness_figure(program, tmp_path / "none" / "one.png")
