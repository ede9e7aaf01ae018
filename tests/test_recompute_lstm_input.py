"""The example refuses bad input in one line, and keeps what it reported when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import recompute_lstm

ROOT = Path(__file__).parent.parent
SMALL = (
    "--seq-len 48 --units 8 --features 12 --batch-size 4 --gradient-accumulation 2 "
    "--steps-per-epoch 6 --quiet"
).split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--checkpoints -1", ["--checkpoints", "-1", "the least is 0"]),
        ("--checkpoints 2.5", ["--checkpoints", "'2.5'", "whole number"]),
        ("--checkpoints 2048", ["--checkpoints 2048", "at most 2047"]),
        ("--seq-len 8 --checkpoints 9", ["--checkpoints 9", "at most 7"]),
        ("--units 0", ["--units", "0", "the least is 1"]),
        ("--batch-size zero", ["--batch-size", "'zero'"]),
        ("--learning-rate 0", ["--learning-rate", "above zero"]),
        ("--learning-rate nan", ["--learning-rate", "nan", "finite"]),
        ("--learning-rate inf", ["--learning-rate", "inf", "finite"]),
        ("--text nowhere.txt", ["nowhere.txt", "cannot be read"]),
        ("--text EMPTY", ["0 bytes", "needs 2049"]),
        ("--text SHORT", ["100 bytes", "lower --seq-len"]),
        ("--text SHORT --data constant", ["--text", "--data constant"]),
        ("--json no/such/folder/out.json", ["--json", "does not exist"]),
        ("--json FOLDER", ["--json", "exists already"]),
        ("--json FOLDER --force", ["--json", "a folder"]),
        ("--report FOLDER", ["--report", "--force"]),
        ("--report SHORT --force", ["--report", "a file"]),
        ("--report SHORT/inside", ["--report"]),
        ("--target tpu", ["--target", "'tpu'", "xla"]),
        ("--target ipu", ["--target ipu", "Poplar SDK", "--target xla"]),
        ("--gradient-accumulation 3", ["--gradient-accumulation 3", "40"]),
        ("--nonsense", ["--nonsense", "--help"]),
        ("--checkpoints auto", ["--checkpoints auto", "--memory-budget"]),
        ("--memory-budget 128MiB", ["--memory-budget", "--checkpoints auto"]),
        ("--checkpoints 7 --memory-budget 128MiB", ["--memory-budget", "--checkpoints auto"]),
        ("--checkpoints auto --memory-budget 128MB", ["--memory-budget", "'128MB'", "MiB"]),
        ("--checkpoints auto --memory-budget -1", ["--memory-budget"]),
        ("--checkpoints auto --memory-budget 1.5", ["--memory-budget", "'1.5'"]),
        ("--checkpoints auto --memory-budget 0", ["--memory-budget", "at least one byte"]),
        (
            "--checkpoints auto --memory-budget 1GiB --no-recompute",
            ["--no-recompute", "--checkpoints auto"],
        ),
        ("--sweep --checkpoints 7", ["--checkpoints", "--sweep"]),
        ("--sweep 1,x", ["--sweep", "'x'"]),
        ("--sweep 1,2048", ["--sweep 2048", "at most 2047"]),
        ("--levels 0", ["--levels", "the least is 1"]),
    ],
)
def test_bad_input_gets_one_line_and_touches_nothing(
    arguments, says, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("x" * 100)
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name, path in (("EMPTY", "empty.txt"), ("SHORT", "short.txt"), ("FOLDER", "folder")):
        arguments = arguments.replace(name, path)
    assert recompute_lstm.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    for word in says:
        assert word in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.long
def test_a_loss_that_is_no_number_stops_the_run(folder, capsys):
    path = folder / "nan.json"
    code = recompute_lstm.main(
        [*SMALL, "--data", "constant", "--learning-rate", "1e30", "--json", str(path)]
    )
    assert code == 1
    err = capsys.readouterr().err
    assert "update" in err
    assert "--learning-rate" in err
    assert json.loads(path.read_text())["completed"] is False


def run_without_tensorflow(*arguments):
    """Return the finished process of the command, which fails where TensorFlow was imported."""
    code = (
        f"import sys, recompute_lstm; code = recompute_lstm.main({list(arguments)});"
        "assert 'tensorflow' not in sys.modules; sys.exit(code)"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_help_is_the_docstring_and_loads_no_tensorflow():
    done = run_without_tensorflow("--help")
    assert done.returncode == 0, done.stderr
    assert recompute_lstm.__doc__.splitlines()[0] in done.stdout


def test_wrong_arguments_are_found_before_tensorflow_is_loaded():
    done = run_without_tensorflow("--checkpoints", "5000")
    assert done.returncode == 2, done.stderr


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_an_interrupted_run_ends_at_once_and_keeps_what_was_reported(tmp_path):
    path = tmp_path / "partial.json"
    command = [
        sys.executable,
        "recompute_lstm.py",
        *SMALL[:-1],
        "--epochs",
        "100000",
        "--json",
        str(path),
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.startswith("update 3/"):
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        error = process.stderr.read()
        assert process.wait(timeout=60) == 130, error
    assert "interrupted" in error
    assert "Traceback" not in error
    result = json.loads(path.read_text())
    assert len(result["losses"]) >= 3
    assert result["completed"] is False
