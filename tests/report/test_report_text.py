"""Text on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from keras_recompute.report import memory_rows, print_liveness, print_memory

MIB = 2**20


def text(show, *arguments, width=100, terminal=False, **options) -> str:
    """Return what ``show`` prints."""
    out = io.StringIO()
    show(
        *arguments,
        Console(file=out, width=width, force_terminal=terminal, color_system=None),
        **options,
    )
    return out.getvalue()


def test_every_figure_is_shown(program):
    shown = text(print_liveness, program, title="A made-up program")
    for figure in (
        "A made-up program",
        "50.0 MiB",
        "10.0 MiB",
        "64.0 MiB",
        "1,234",
        "net/lstm: MatMul",
        "recompute",
        "section-1",
    ):
        assert figure in shown
    assert "live peak and reserved: fragmentation" in shown
    # this record's buffers do not add up to its steps: that is said, not hidden
    assert "summed over all steps: unexplained" in shown


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("terminal", [True, False])
def test_the_width_is_kept(program, width, terminal):
    shown = text(
        print_liveness,
        program,
        width=width,
        terminal=terminal,
        title="A title that is longer than fifty characters are",
    )
    assert max(map(len, shown.splitlines())) <= width


def test_a_pipe_gets_no_lines_and_no_colours(program):
    assert text(print_liveness, program).isascii()
    assert not text(print_liveness, program, terminal=True).isascii()


def test_only_the_asked_buffers_are_listed(program):
    shown = text(print_liveness, program, buffers=1)
    assert "Largest 1 alive" in shown
    assert "fusion.2" not in shown


def test_three_figures_side_by_side():
    lines = text(print_memory, memory_rows(predicted=90 * MIB, compiled=100 * MIB)).splitlines()
    assert [line.split() for line in lines if line][1:] == [
        ["bytes", "over", "compiled"],
        ["predicted", "by", "the", "plan", "90.0", "MiB", "-10.0", "MiB"],
        ["compiled", "100", "MiB", "0", "B"],
        ["measured", "in", "the", "process", "not", "known"],
    ]
