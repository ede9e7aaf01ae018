"""The command line: what it prints, and that whatever is wrong is one line and exit code 2."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from keras_recompute.liveness import write_profile_pop
from keras_recompute.report.commands import main

MIB = 2**20
IPU = [(f"lstm/{n}", SimpleNamespace(bytes=n * 10 * MIB, variables=[])) for n in (1, 2, 4, 3)]


pytestmark = pytest.mark.usefixtures("folders")


@pytest.fixture
def folders(program, tmp_path, monkeypatch):
    """Two reports in ``runs/plain`` and ``runs/saved``, the second with smaller temporaries."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    steps = tuple(
        dataclasses.replace(s, not_always_live_bytes=s.not_always_live_bytes // 2)
        for s in program.steps
    )
    for name, record in (("plain", program), ("saved", dataclasses.replace(program, steps=steps))):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "liveness.json").write_text(record.to_json())
    return tmp_path / "runs"


def lines(capsys) -> list[list[str]]:
    """Return the words of each line that was printed."""
    return [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_show(capsys):
    assert main(["show", "runs/plain"]) == 0
    shown = lines(capsys)
    assert ["peak", "50.0", "MiB"] in shown
    # (15, 20, 30, 30, 40, 50, 18, 12) * 7 // 50, from "_" for nothing to "#" for the peak
    assert ["memory", "".join("_.-:=+*#"[n] for n in (2, 2, 4, 4, 5, 7, 2, 1))] in shown
    assert ["phase", "ff", "frbbu"] in shown


def test_show_holds_a_report_against_a_device(capsys):
    assert main(["show", "runs/plain", "--device", "t4"]) == 0
    assert ["capacity", "14.8", "GiB", "(the", "peak", "is", "below", "1%,"] in [
        line[:8] for line in lines(capsys)
    ]
    for wrong in (["show", "runs/plain", "--device", "h10"], ["show", "runs", "--device", "t4"]):
        assert main(wrong) == 2
    said = capsys.readouterr().err
    assert "did you mean 'h100'" in said
    assert "--device takes one report" in said


def test_show_a_file_and_a_folder_of_folders(capsys):
    assert main(["show", "runs/plain/liveness.json", "--buffers", "1"]) == 0
    assert "Largest 1 alive" in capsys.readouterr().out
    assert main(["show", "runs"]) == 0
    shown = lines(capsys)
    assert [line[:6] for line in shown[2:]] == [
        ["plain", "50.0", "MiB", "10.0", "MiB", "8"],
        ["saved", "30.0", "MiB", "10.0", "MiB", "8"],
    ]
    assert shown[3][6].count("#") == 0 < shown[2][6].count("#")  # one scale


def test_compare(capsys):
    assert main(["compare", "runs/plain", "runs/saved"]) == 0
    shown = lines(capsys)
    assert ["peak", "50.0", "MiB", "30.0", "MiB", "-20.0", "MiB", "-40%"] in shown
    assert ["always-live", "10.0", "MiB", "10.0", "MiB", "0", "B"] in shown
    assert ["activation", "30.0", "MiB", "30.0", "MiB", "0", "B"] in shown
    curves = [line[1] for line in shown if line[0] == "memory"]
    assert curves[0].count("#") == 1
    assert "#" not in curves[1]


def test_an_ipu_and_the_stand_in_in_one_picture(tmp_path, capsys, monkeypatch):
    """One report captured with the SDK, one written by ourselves: found by their names, and drawn
    together.
    """
    steps = [
        SimpleNamespace(
            program=SimpleNamespace(name=n, type="DoExchange"), notAlwaysLiveMemory=held
        )
        for n, held in IPU
    ]
    compilation = SimpleNamespace(
        tiles=[SimpleNamespace(memory=SimpleNamespace(alwaysLiveBytes=5 * MIB))] * 4,
        livenessProgramSteps=steps,
        alwaysLiveVariables=[],
        target=SimpleNamespace(numTiles=4, bytesPerTile=25 * MIB),
    )
    report = SimpleNamespace(compilation=compilation, poplarVersion=SimpleNamespace(string="3.4.0"))
    monkeypatch.setitem(sys.modules, "pva", SimpleNamespace(openReport=lambda _: report))
    (tmp_path / "ipu").mkdir()
    (tmp_path / "ipu" / "profile.pop").write_bytes(b"\x00 of the SDK")
    assert main(["export", "runs/plain", "--to", "pop", "--output", "stand-in"]) == 0
    assert capsys.readouterr().out.split() == [str(Path("stand-in", "profile.pop"))]

    assert main(["compare", "ipu", "stand-in", "--figure", "both.png"]) == 0
    shown = lines(capsys)
    assert ["peak", "60.0", "MiB", "50.0", "MiB", "-10.0", "MiB", "-17%"] in shown
    assert shown[-1] == ["both.png"]
    assert Path("both.png").read_bytes().startswith(b"\x89PNG")
    assert main(["compare", "ipu", "stand-in", "--figure", "both.png"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["compare", "ipu", "stand-in", "--figure", "both.png", "--force"]) == 0


def test_a_folder_of_reports_of_both_kinds(folders, program, capsys):
    write_profile_pop(program, folders / "tf_report__1" / "profile.pop")
    # Beside its liveness.json: one report, not two
    write_profile_pop(program, folders / "plain" / "profile.pop")
    assert main(["show", "runs"]) == 0
    assert [line[0] for line in lines(capsys)[2:]] == ["plain", "saved", "tf_report__1"]


def test_top(capsys):
    assert main(["top", "runs/plain", "--rows", "2"]) == 0
    shown = lines(capsys)
    assert " ".join(shown[0]).startswith(
        "Step 5 of 8, the peak: 50.0 MiB in 3 buffers (backward, section-1)"
    )
    assert shown[2] == [
        "30.0",
        "MiB",
        "net/lstm:",
        "MatMul",
        "activation",
        "recompute",
        "section-1",
        "4-5",
    ]
    assert shown[-1] == ["10.0", "MiB", "in", "1", "more"]


def test_top_by_layer_at_a_step(capsys):
    assert main(["top", "runs/plain", "--by", "layer", "--step", "6"]) == 0
    assert lines(capsys)[2:] == [
        ["10.0", "MiB", "50%", "(none)"],
        ["10.0", "MiB", "50%", "net/lstm"],
    ]


@pytest.mark.parametrize(
    "command", [["show", "runs/plain"], ["show", "runs"], ["top", "runs/plain"]]
)
@pytest.mark.parametrize("width", [44, 80, 132])
def test_the_width_is_kept(capsys, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert shown.isascii()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["show", "none"], "no liveness report could be read"),
        (["show", "."], "holds no liveness.json"),
        (["show", "torn.json"], "not JSON"),
        (["show", "foreign.json"], "not an object with"),
        (["show", "newer.json"], "upgrade keras-recompute"),
        (["show", "text.pb"], "'text.pb'"),
        (["show", "foreign.pop"], "pva"),
        (["show", "none.pop"], "No such file"),
        (["show", "none.pb"], "could not be read"),
        (["compare", "runs", "runs/plain"], "holds 2 reports"),
        (["top", "runs/plain", "--step", "8"], "not one of the 8 steps"),
        (["top", "runs/plain", "--step", "-1"], "--step"),
        (["top", "runs/plain", "--rows", "two"], "a whole number from 0"),
        (["top", "runs/plain", "--by", "colour"], "invalid choice"),
        (["top"], "required"),
        (["show", ""], "argument report: the name of the report is empty"),
        (["compare", "runs/plain", ""], "argument B: the name of the report is empty"),
        (["open", "", "--no-browser"], "argument A: the name of the report is empty"),
        (
            ["export", "runs/plain", "--to", "csv", "--output", ""],
            "argument --output: the name of the folder is empty",
        ),
        (
            ["compare", "runs/plain", "runs/saved", "--figure="],
            "argument --figure: the name of the file is empty",
        ),
        (["show", "a\0b"], "that no file name can have"),
        (["top", "runs/plain", "--rows", "9" * 5000], "is not a whole number from 0"),
        (["top", "runs/plain", "--rows", "9" * 30], "is too large"),
        ([], "required"),
        (["paint", "runs"], "invalid choice"),
    ],
)
def test_what_is_wrong_is_one_line_and_code_2(folders, program, capsys, command, message):
    (folders.parent / "torn.json").write_text(program.to_json()[:100])
    (folders.parent / "foreign.json").write_text('{"a": "liveness"}')
    (folders.parent / "newer.json").write_text(
        json.dumps({**json.loads(program.to_json()), "schema_version": 99})
    )
    (folders.parent / "text.pb").write_text("no program")
    (folders.parent / "foreign.pop").write_bytes(b"\x00\xff")
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.skipif(os.name != "posix", reason="pipes, links and devices as POSIX has them")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["show", "pipe.json"], "is a pipe"),
        (["show", "pipe.pop"], "is a pipe"),
        (["show", "pipe.pb"], "is a pipe"),
        (["show", "runs/pipe"], "is a pipe"),
        (["compare", "runs/plain", "pipe.json"], "is a pipe"),
        (["show", "/dev/zero"], "is a device"),
        (["export", "runs/plain", "--to", "xprof"], "is a pipe"),
        (
            ["show", "large.json"],
            "has 8,589,934,592 bytes, and a report has at most 268,435,456",
        ),
        (
            ["show", "large.pb"],
            "has 8,589,934,592 bytes, and a report has at most 2,147,483,647",
        ),
        (["show", "large.pop"], "has 8,589,934,592 bytes, and a report has at most 268,435,456"),
        (["show", "foreign.pop"], "pva"),
        (["show", "x" * 300], "name too long"),
        (["show", "x" * 300 + ".pop"], "name too long"),
        (["show", "circle"], "symbolic links"),
        (["compare", "runs/plain", "runs/plain", "--figure", "x" * 300], "name too long"),
        (["export", "runs/plain", "--to", "csv", "--output", "x" * 300], "name too long"),
        (["export", "runs/plain", "--to", "csv", "--output", "circle"], "cannot be created"),
    ],
)
def test_what_may_never_end_and_what_no_file_can_be_called(folders, capsys, command, message):
    here = folders.parent
    for name in ("pipe.json", "pipe.pop", "pipe.pb", "runs/plain/liveness.hlo_proto.pb"):
        os.mkfifo(here / name)
    (folders / "pipe").mkdir()
    os.mkfifo(folders / "pipe" / "liveness.json")
    (here / "circle").symlink_to("circle")
    for name in ("large.json", "large.pb", "large.pop", "foreign.pop"):
        (here / name).write_bytes(
            b'{"format": "keras-recompute profile.pop"}\n' if name == "large.pop" else b""
        )
        os.truncate(here / name, 8 * 2**30)  # without a block of the disk
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


def test_memory_that_is_not_there_is_told(capsys, monkeypatch):
    def refused(*_):
        raise MemoryError

    monkeypatch.setattr(
        "keras_recompute.liveness.program.json_columns.decode", lambda *_, **__: refused()
    )
    assert main(["show", "runs/plain"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("redirect", "says"), [(">/dev/full", "No space left on device"), (">&-", "is closed")]
)
def test_an_output_that_cannot_be_written_is_told_and_files_are_written(tmp_path, redirect, says):
    command = [
        sys.executable,
        "-m",
        "keras_recompute.liveness",
        "export",
        "runs/plain",
        "--to",
        "csv",
    ]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirect}', "sh", *command],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert says in done.stderr
    assert (tmp_path / "runs" / "plain" / "buffers.csv").exists()


def test_hostile_names_are_shown_as_they_are(program, tmp_path, capsys):
    hostile = "[/red][bold]a\x1b[2J\nb\u202e[/]"
    buffers = tuple(
        dataclasses.replace(b, name=hostile, layer=hostile, category=hostile)
        for b in program.buffers
    )
    record = dataclasses.replace(program, name=hostile, buffers=buffers)
    (tmp_path / "liveness.json").write_text(record.to_json())
    for command in (["show"], ["top"], ["top", "--by", "layer"]):
        assert main([*command, str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "[/red][bold]a\\x1b[2" in out  # and the rest, in the same place or folded


def test_the_docstring_is_the_help(capsys):
    assert main(["--help"]) == 0
    assert "what changed from the first report to the second" in capsys.readouterr().out


def test_it_runs_as_a_module_and_survives_a_reader_that_leaves():
    command = [sys.executable, "-m", "keras_recompute.liveness", "show"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [*command, "runs"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as left:
        assert left.stdout is not None
        assert left.stderr is not None
        left.stdout.close()
        assert left.stderr.read() == b""
    missing = subprocess.run(
        [*command, "none"], env=environment, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2
    assert len(missing.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_damaged_serialized_program_is_one_line_in_a_new_process(tmp_path):
    """TensorFlow, which reads such a file, writes lines of its own where it is first imported."""
    (tmp_path / "bad.hlo_proto.pb").write_bytes(b"garbage")
    command = [
        sys.executable,
        "-m",
        "keras_recompute.liveness",
        "show",
        str(tmp_path / "bad.hlo_proto.pb"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "not a compiled XLA program" in done.stderr
