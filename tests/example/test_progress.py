"""What a run says while it goes: a line that lives on a terminal, a line for each update elsewhere,
events for TensorBoard.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import recompute_lstm
from lstm_example import event_log
from lstm_example.progress import Progress, describe_figures

ROOT = Path(__file__).parents[2]
SMALL = "--seq-len 48 --units 8 --features 12 --batch-size 4 --gradient-accumulation 2 "
SMALL += "--steps-per-epoch 6 --checkpoints 1"
FIGURES = {
    "loss": 1.5,
    "bits_per_byte": 2.25,
    "step_seconds": 0.25,
    "tokens_per_second": 4096.0,
    "resident_bytes": 3 * 2**30,
}
SHOW, HIDE = "\x1b[?25h", "\x1b[?25l"  # the cursor


def test_the_figures_in_words():
    assert list(describe_figures(FIGURES).values()) == [
        "loss 1.5000",
        "2.250 bits per byte",
        "0.25 s per step",
        "4,096 tokens per second",
        "3.00 GiB",
    ]  # fmt: skip
    unknown = {
        **FIGURES,
        "bits_per_byte": None,
        "tokens_per_second": None,
        "resident_bytes": None,
        "step_seconds": 0.0625,
    }
    assert list(describe_figures(unknown).values()) == [
        "loss 1.5000",
        "",
        "62.5 ms per step",
        "",
        "",
    ]


def test_without_a_terminal_each_update_is_a_line(capsys):
    progress = Progress(quiet=False)
    progress.begin(9, done=0)
    progress.update(1, 9, FIGURES)
    progress.update(2, 9, {**FIGURES, "bits_per_byte": None})
    progress.stop()
    assert capsys.readouterr().out.splitlines() == [
        "update 1/9  loss 1.5000 (2.250 bits per byte)  0.25 s per step",
        "update 2/9  loss 1.5000  0.25 s per step",
    ]
    quiet = Progress(quiet=True)
    quiet.begin(9, done=0)
    quiet.update(1, 9, FIGURES)
    quiet.say("nothing")
    assert capsys.readouterr().out == ""


def test_on_a_terminal_one_line_lives_and_the_cursor_comes_back(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    progress = Progress(quiet=False)
    progress.begin(9, done=4)
    progress.update(5, 9, FIGURES)
    progress.say("saved")
    progress.stop()
    progress.stop()
    shown = capsys.readouterr().out
    assert "2.250 bits per byte  0.25 s per step  4,096 tokens per second  3.00 GiB" in shown
    assert "5/9" in shown
    assert "saved\n" in shown
    assert "update 5/9" not in shown
    assert shown.rindex(SHOW) > shown.rindex(HIDE)


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals as POSIX has them")
def test_a_run_that_is_interrupted_leaves_the_terminal_as_it_was():
    import pty

    ours, its = pty.openpty()
    command = [sys.executable, "recompute_lstm.py", *SMALL.split(), "--epochs", "100000"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=its, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm"}
    )
    os.close(its)
    shown, interrupted = "", False
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                shown += os.read(ours, 4096).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            if not interrupted and "tokens per second" in shown:
                process.send_signal(signal.SIGINT)
                interrupted = True
        assert process.wait(30) == 128 + signal.SIGINT
    finally:
        process.kill()
        os.close(ours)
    assert shown.rindex(SHOW) > shown.rindex(HIDE)
    assert "interrupted by SIGINT after" in shown[shown.rindex(HIDE) :]


@pytest.mark.long
def test_tensorboard_reads_the_log(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder, saved = tmp_path / "log", ["--save", str(tmp_path / "saves")]
    asked = [*SMALL.split(), "--quiet", "--validation", "0.1", "--log", str(folder), *saved]
    assert recompute_lstm.main(asked) == 0
    assert recompute_lstm.main([*asked, "--epochs", "2", "--resume"]) == 0
    events = accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    tags = set(events.Tags()["scalars"])
    assert {
        "loss",
        "bits_per_byte",
        "step_seconds",
        "tokens_per_second",
        "validation_loss",
        "peak_bytes",
    } <= tags
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in events.Images("memory over program steps")] == [0, 3]


def test_a_log_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    assert recompute_lstm.main(["--log", "README.md"]) == 2
    assert recompute_lstm.main(["--log", str(tmp_path / "log"), "--compile-only"]) == 2
    monkeypatch.setattr(event_log, "find_spec", lambda _: None)
    assert recompute_lstm.main(["--log", str(tmp_path / "log")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "--log README.md: it cannot be written (Not a directory)" in lines[0]
    assert "--compile-only: it cannot be combined with --log" in lines[1]
    assert (
        "--log: TensorBoard, which writes it, is not installed: pip install tensorboard" in lines[2]
    )
    assert not (tmp_path / "log").exists()
