"""Plain rows: what every presentation shows."""

from __future__ import annotations

import dataclasses

from keras_recompute.liveness import Step
from keras_recompute.report import (
    category_rows,
    memory_rows,
    phase_spans,
    section_spans,
    summary_rows,
)
from keras_recompute.report.rows import MemoryRow, Span, describe

MIB = 2**20


def test_three_figures_are_held_against_the_compiled_one():
    assert memory_rows(predicted=90, compiled=100, measured=130) == [
        MemoryRow("predicted by the plan", 90, -10),
        MemoryRow("compiled", 100, 0),
        MemoryRow("measured in the process", 130, 30),
    ]


def test_a_figure_that_is_not_known_is_not_zero():
    assert [(r.bytes, r.over_compiled_bytes) for r in memory_rows(measured=130)] == [
        (None, None),
        (None, None),
        (130, None),
    ]
    assert [(r.bytes, r.over_compiled_bytes) for r in memory_rows(compiled=0)] == [
        (None, None),
        (0, 0),
        (None, None),
    ]


def test_a_gpu_has_a_row_where_there_is_one():
    assert memory_rows(compiled=100, on_device=104)[-1] == MemoryRow(
        "measured on the device", 104, 4
    )
    assert "measured on the device" not in [row.name for row in memory_rows(compiled=100)]


def test_summary(program):
    assert summary_rows(program) == [
        ("peak", "50.0 MiB"),
        ("always-live", "10.0 MiB"),
        ("not-always-live at the peak", "40.0 MiB"),
        ("input feed, counted apart", "64.0 MiB"),
        ("reserved by the allocator", "44.0 MiB (4.00 MiB of it fragmentation)"),
        ("capacity", "100 MiB (the peak is 50%, a run needs 118% of it)"),
        ("program steps", "8"),
        ("program instructions", "1,234"),
        ("compiled in", "2.0 s"),
        ("compiled by", "hand"),
    ]


def test_a_small_share_of_the_capacity_is_not_none(program):
    rows = dict(summary_rows(dataclasses.replace(program, capacity_bytes=16 * 2**30)))
    # 50 and 118 MiB
    assert rows["capacity"] == "16.0 GiB (the peak is below 1%, a run needs below 1% of it)"


def test_a_summary_leaves_out_what_is_not_known(program):
    unknown = dict.fromkeys(
        ("program_instructions", "allocated_temporary_bytes", "capacity_bytes", "compile_seconds"),
        None,
    )
    names = [
        name for name, _ in summary_rows(dataclasses.replace(program, **unknown, compiled_by="xla"))
    ]
    assert names == [
        "peak",
        "always-live",
        "not-always-live at the peak",
        "input feed, counted apart",
        "program steps",
    ]


def test_categories_add_up_to_the_peak(program):
    rows = category_rows(program)
    assert rows == [("activation", 30 * MIB), ("gradient", 10 * MIB), ("weight", 10 * MIB)]
    assert sum(count for _, count in rows) == program.peak_bytes


def test_a_run_of_few_steps_within_a_phase_can_be_left_out(program):
    phases = "ffrbbrrbfbbbu"
    names = {"f": "forward", "r": "recompute", "b": "backward", "u": "update"}
    steps = tuple(Step(f"step.{n}", 0, phase=names[letter]) for n, letter in enumerate(phases))
    record = dataclasses.replace(program, steps=steps, buffers=())

    def letters(shortest):
        spans = phase_spans(record, shortest=shortest)
        assert [s.first for s in spans[1:]] == [s.last + 1 for s in spans[:-1]]
        return "".join(span.name[0] * span.steps for span in spans)

    assert letters(1) == phases
    # The step of the forward pass; the first replay stands between two phases
    assert letters(2) == "ffrbbrrbbbbbu"
    assert letters(3) == letters(9) == "ffrrrrrbbbbbu"  # the first of two that could give way does


def test_spans(program):
    assert phase_spans(program) == [
        Span("forward", 0, 3),  # the step of no known phase belongs to the run before it
        Span("recompute", 4, 4),
        Span("backward", 5, 6),
        Span("update", 7, 7),
    ]
    # the same section forward, then back
    assert section_spans(program) == [
        Span("section-0", 0, 1),
        Span("section-1", 2, 3),
        Span("section-1", 4, 5),
    ]
    assert sum(span.steps for span in phase_spans(program)) == program.program_steps


def test_a_short_gap_in_a_section_is_closed_and_a_long_one_is_not(program):
    def spans(gap):
        between = (Step("between", 0, phase="backward"),) * gap
        ends = (Step("end", 0, phase="recompute", section="section-0"),)
        return section_spans(dataclasses.replace(program, steps=ends + between + ends, buffers=()))

    assert spans(7) == [Span("section-0", 0, 8)]
    assert spans(8) == [Span("section-0", 0, 0), Span("section-0", 9, 9)]


def test_a_buffer_is_described_by_its_layer(program):
    assert [describe(b) for b in program.buffers] == [
        "net/lstm/kernel",
        "x",
        "net/lstm: MatMul",
        "fusion.2",
    ]
