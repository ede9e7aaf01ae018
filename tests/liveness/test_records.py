"""The record as JSON: there and back, and everything else refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from pathlib import Path

import pytest

from keras_recompute.errors import ReportError
from keras_recompute.liveness import Buffer, Program, Step, json_columns, read_hlo_proto, reconcile
from keras_recompute.liveness.reconcile import UNEXPLAINED


def small(**changes) -> Program:
    """Return a program of three steps: a weight of 10 bytes, a feed of 5, temporaries of 7 and 3, a
    result of 1.
    """
    fields = {
        "name": "small",
        "compiled_by": "hand",
        "steps": (
            Step("a", 7, "lstm/a", "lstm", "forward", "section-0"),
            Step("b", 11),
            Step("c", 1),
        ),
        "buffers": (
            Buffer("w", 10, 0, 2, "always-live", "weight"),
            Buffer("x", 5, 0, 2, "input-feed", "input"),
            Buffer(
                "t",
                7,
                0,
                1,
                "temporary",
                "activation",
                "lstm/a",
                "lstm",
                "forward",
                "section-0",
                "net.py:3",
            ),
            Buffer("s", 3, 1, 1, "temporary", "gradient"),
            Buffer("r", 1, 1, 2, "result", "other"),
        ),
        "allocated_temporary_bytes": 13,
        "compiler_totals": {"heap_trace_peak_bytes": 10},
    }
    return Program(**{**fields, **changes})


def test_a_program_is_shown_in_a_line():
    program = small()
    said = "small: peak 21 B at step 2 of 3, 10 B of it always live (compiled by hand)"
    assert str(program) == said
    assert "Buffer(" not in repr(program)
    assert "Step(" not in repr(program)


def test_figures():
    program = small()
    assert (program.always_live_bytes, program.input_feed_bytes) == (10, 5)
    assert program.not_always_live_peak_bytes == 7 + 3 + 1
    assert (program.peak_bytes, program.peak_step, program.program_steps) == (21, 1, 3)
    assert program.fragmentation_bytes == 13 - 11
    assert program.timeline.total_bytes == (17, 21, 11)
    assert program.timeline is program.timeline, "made once"
    assert [b.name for b in program.top_buffers(3)] == ["w", "t", "s"]
    assert program.named_share_at_peak() == (10 + 7) / 21
    assert small(allocated_temporary_bytes=None).fragmentation_bytes is None


def test_json_there_and_back(scan_program, training_program):
    for program in (
        small(),
        small(capacity_bytes=30, compile_seconds=1.5),
        scan_program,
        training_program,
    ):
        text = program.to_json()
        assert Program.from_json(text) == Program.from_json(text.encode()) == program
        assert Program.from_json(text).to_json() == text


def test_a_file_of_schema_1_is_read():
    """Written once and not again: a release that changes the schema must still read it."""
    program = Program.read(Path(__file__).with_name("schema_1.json"))
    assert (program.name, program.compiled_by, program.capacity_bytes, program.compile_seconds) == (
        "small",
        "hand",
        100,
        0.5,
    )
    assert (program.program_instructions, program.allocated_temporary_bytes) == (9, 8)
    assert program.compiler_totals == {"heap_trace_peak_bytes": 7}
    assert program.steps == (Step("a", 7, "lstm/a", "lstm", "forward", "section-0"), Step("b", 3))
    assert program.buffers == (
        Buffer("w", 10, 0, 1, "always-live", "weight"),
        Buffer("t", 7, 0, 0, "temporary", "activation", layer="lstm"),
    )


def test_json_has_every_field_and_writes_each_text_once():
    document = json.loads(small().to_json())
    assert set(document["steps"]) == {f.name for f in dataclasses.fields(Step)}
    assert set(document["buffers"]) == {f.name for f in dataclasses.fields(Buffer)}
    assert {f.name for f in dataclasses.fields(Program)} <= set(document)
    assert len(set(document["texts"])) == len(document["texts"])


def test_json_of_a_large_program_is_compact(training_program):
    per_record = len(training_program.to_json()) / (
        len(training_program.steps) + len(training_program.buffers)
    )
    assert per_record < 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a liveness report"),
        ({"schema_version": json_columns.SCHEMA_VERSION + 1}, "upgrade keras-recompute"),
        ({"schema_version": "1"}, "schema_version '1'"),
        ({"schema_version": True}, "schema_version True"),
        ({"steps": None}, "has steps None"),
        ({"name": 3}, "has name 3"),
        ({"capacity_bytes": 1.5}, "has capacity_bytes 1.5"),
        ({"compile_seconds": "fast"}, "compile_seconds 'fast'"),
        ({"compiler_totals": {"a": "b"}}, "a total is not a whole number"),
        ({"texts": [1]}, "a text is not a string"),
        ({"texts": []}, "in column"),
    ],
)
def test_a_changed_document_is_refused(change, message):
    document = {**json.loads(small().to_json()), **change}
    with pytest.raises(ReportError, match=message):
        Program.from_json(json.dumps(document))


def test_a_cut_column_is_refused():
    document = json.loads(small().to_json())
    document["steps"]["phase"].pop()
    with pytest.raises(ReportError, match="differ in length"):
        Program.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[" * 100_000, b"\xff\xfe", '{"a": 1}', "1" * 5000]
)
def test_text_that_is_no_report_is_refused(text):
    with pytest.raises(ReportError, match="not a liveness report"):
        Program.from_json(text)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ReportError, match="no liveness report could be read"):
        Program.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": ()},
        {"steps": (Step("a", -1), Step("b", 0), Step("c", 0))},
        {"buffers": (Buffer("t", -1, 0, 1, "temporary", "other"),)},
        {"buffers": (Buffer("t", 1, 0, 3, "temporary", "other"),)},
        {"buffers": (Buffer("t", 1, 2, 1, "temporary", "other"),)},
        {"buffers": (Buffer("t", 1, 0, 1, "forever", "other"),)},
    ],
)
def test_a_record_that_cannot_be_is_refused(changes):
    with pytest.raises(ReportError):
        small(**changes)


def test_compiled_programs_reconcile(scan_program, training_program):
    for program in (scan_program, training_program):
        rows = reconcile(program)
        assert len(rows) == 6
        assert UNEXPLAINED not in [row.explanation for row in rows]
        assert all(bool(row.difference) == bool(row.explanation) for row in rows)
    # the sums of the loop: one byte per flag or four per scalar of its condition and reductions are
    # thread-local
    (everything,) = [row for row in reconcile(scan_program) if row.name == "everything allocated"]
    assert everything.difference == -scan_program.compiler_totals["thread_local_bytes"]


def test_what_does_not_agree_is_called_unexplained():
    assert {row.name: row.difference for row in reconcile(small())} == {
        "summed over all steps": 0,
        "peak of the temporaries": 0,
        "live peak and reserved": 11 - 13,
    }
    wrong = small(
        steps=(Step("a", 7), Step("b", 12), Step("c", 1)),
        compiler_totals={"heap_trace_peak_bytes": 9},
    )
    assert [(row.difference, row.explanation) for row in reconcile(wrong)][:2] == [
        (-1, UNEXPLAINED),
        (1, UNEXPLAINED),
    ]


def damaged(data: bytes, seed: int):
    """Yield ``data`` cut short and with bits flipped, the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(150):
        yield data[: chance.randrange(len(data))]
        flipped = bytearray(data)
        for _ in range(chance.choice((1, 2, 8))):
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(flipped)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_json_raises_nothing_else(scan_program, seed):
    for data in damaged(scan_program.to_json().encode(), seed):
        with contextlib.suppress(ReportError):
            Program.from_json(data)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_programs_raise_nothing_else(scan_bytes, seed):
    for data in damaged(scan_bytes, seed):
        with contextlib.suppress(ReportError):
            reconcile(read_hlo_proto(data))
