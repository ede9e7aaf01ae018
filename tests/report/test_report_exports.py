"""Files for other tools: that they hold every byte, and that the tools read them."""

from __future__ import annotations

import csv
import dataclasses
import json

import pytest

from keras_recompute.errors import ReportError
from keras_recompute.report import export_csv, export_trace, export_xprof, write_report
from keras_recompute.report.commands import main
from keras_recompute.report.exports import category_sums, trace_events

MIB = 2**20


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_every_step_and_every_buffer(program, tmp_path):
    steps, buffers = export_csv(program, tmp_path / "deep" / "folder")
    rows = read(steps)
    assert [int(row["step"]) for row in rows] == list(range(8))
    assert [int(row["total_bytes"]) for row in rows] == list(program.timeline.total_bytes)
    assert rows[4]["phase"] == "recompute"
    assert rows[2]["phase"] == ""
    rows = read(buffers)
    assert [row["name"] for row in rows] == [b.name for b in program.buffers]
    assert [int(row["size_bytes"]) for row in rows] == [b.size_bytes for b in program.buffers]


def test_csv_keeps_any_name(program, tmp_path):
    odd = 'a,"b"\nc;=1+1 \u00e9'
    buffers = (dataclasses.replace(program.buffers[0], name=odd), *program.buffers[1:])
    _, path = export_csv(dataclasses.replace(program, buffers=buffers), tmp_path)
    assert read(path)[0]["name"] == odd


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n", "\0", "'"])
def test_csv_has_no_cell_that_a_spreadsheet_computes(program, tmp_path, begin):
    """As OWASP has it: text in quotation marks, with an apostrophe before what begins as a formula
    does.
    """
    name = f'{begin}HYPERLINK("http://x","y")'
    buffers = (dataclasses.replace(program.buffers[0], name=name), *program.buffers[1:])
    steps = (
        dataclasses.replace(program.steps[0], instruction=name, layer=name),
        *program.steps[1:],
    )
    files = export_csv(dataclasses.replace(program, buffers=buffers, steps=steps), tmp_path)
    guarded = "\"'" + name.replace('"', '""') + '"'
    texts = [path.read_bytes().decode() for path in files]
    assert [text.count(guarded) for text in texts] == [2, 1]
    assert [text.count(name.replace('"', '""')) for text in texts] == [2, 1]
    assert texts[1].splitlines()[0] == ",".join(
        f'"{field.name}"' for field in dataclasses.fields(buffers[0])
    )
    if begin != "\0":  # older readers of Python's refuse it
        rows = read(files[1])
        assert rows[0]["name"] == "'" + name
        assert rows[1]["name"] == program.buffers[1].name
        assert [int(row["size_bytes"]) for row in rows] == [b.size_bytes for b in program.buffers]


def test_csv_keeps_numbers_bare_and_has_signs_that_no_encoding_has(program, tmp_path):
    steps = (dataclasses.replace(program.steps[0], instruction="a\ud800"), *program.steps[1:])
    path, _ = export_csv(dataclasses.replace(program, steps=steps), tmp_path)
    first = path.read_text(encoding="utf-8").splitlines()[1]
    assert first == f'0,"a\\ud800",{5 * MIB},"","","forward","section-0",{15 * MIB}'


def test_categories_add_up_to_the_timeline(program):
    sums = category_sums(program)
    assert [sum(column) for column in zip(*sums.values())] == list(program.timeline.total_bytes)
    assert sums["weight"] == [10 * MIB] * 8
    assert sums["activation"] == [0, 0, 0, 0, 30 * MIB, 30 * MIB, 0, 0]
    # this record's buffers do not add up to its steps: the rest is there
    assert sums["unexplained"] == [n * MIB for n in (5, 10, 20, 20, 0, 0, -2, 2)]
    assert "input" not in sums


def test_the_trace_has_counters_and_slices(program, tmp_path):
    document = json.loads(export_trace(program, tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    assert events == list(trace_events(program))
    counters = [e for e in events if e["ph"] == "C"]
    totals = {e["ts"]: sum(e["args"].values()) for e in counters}
    held = []
    for step in range(9):
        held.append(totals.get(step, held[-1] if held else 0))
    assert held[:8] == list(program.timeline.total_bytes)
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = {
        name: [e for e in events if e["ph"] == "X" and e["tid"] == tid]
        for tid, name in threads.items()
    }
    assert [(e["name"], e["ts"], e["dur"]) for e in slices["phase"]] == [
        ("forward", 0, 4),
        ("recompute", 4, 1),
        ("backward", 5, 2),
        ("update", 7, 1),
    ]
    assert [e["name"] for e in slices["section"]] == ["section-0", "section-1", "section-1"]
    assert len(slices["instruction"]) == 8
    assert slices["layer"] == []


def test_xprof_layout(tmp_path):
    files = export_xprof("a/../b c", b"program", tmp_path, run="first")
    assert [str(f.relative_to(tmp_path)) for f in files] == [
        "plugins/profile/first/compiled.xplane.pb",
        "plugins/profile/first/a_.._b_c.hlo_proto.pb",
    ]
    assert files[1].read_bytes() == b"program"
    assert b"program" in files[0].read_bytes()
    with pytest.raises(ReportError, match="leaves no characters"):
        export_xprof("...", b"", tmp_path)


def test_the_memory_viewer_reads_the_layout(tmp_path):
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    tf = pytest.importorskip("tensorflow")
    from keras_recompute.liveness import compile_program

    compiled = compile_program(lambda x: (x @ x) @ x, tf.TensorSpec((64, 64)))
    program = compiled.program()
    write_report(program, tmp_path, serialized=compiled.serialized)
    assert main(["export", str(tmp_path), "--to", "xprof"]) == 0
    (trace,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert "memory_viewer" in convert.xspace_to_tool_names([str(trace)])
    options = {
        "module_name": program.name,
        "memory_space": "0",
        "host": "compiled",
        "hosts": ["compiled"],
    }
    answer, _ = convert.xspace_to_tool_data([str(trace)], "memory_viewer", options)
    assert max(json.loads(answer)["heapSizes"]) * MIB == pytest.approx(program.peak_bytes)


def test_the_command_writes_and_does_not_overwrite(program, tmp_path, capsys):
    write_report(program, tmp_path / "run")
    for to, names in (("csv", ["steps.csv", "buffers.csv"]), ("trace", ["trace.json"])):
        command = ["export", str(tmp_path / "run"), "--to", to, "--output", str(tmp_path / "out")]
        assert main(command) == 0
        assert capsys.readouterr().out.split() == [str(tmp_path / "out" / name) for name in names]
        (tmp_path / "out" / names[0]).write_text("mine")
        assert main(command) == 2
        assert "overwrite it with --force" in capsys.readouterr().err
        assert (tmp_path / "out" / names[0]).read_text() == "mine"
        assert main([*command, "--force"]) == 0
        assert (tmp_path / "out" / names[0]).read_text() != "mine"
        capsys.readouterr()


def test_xprof_needs_the_serialized_program(program, tmp_path, capsys):
    write_report(program, tmp_path, serialized=b"of this program")
    assert (tmp_path / "liveness.hlo_proto.pb").read_bytes() == b"of this program"
    write_report(program, tmp_path)
    assert not (tmp_path / "liveness.hlo_proto.pb").exists()  # it was of the older report
    assert main(["export", str(tmp_path), "--to", "xprof"]) == 2
    assert "keep it with write_report" in capsys.readouterr().err
