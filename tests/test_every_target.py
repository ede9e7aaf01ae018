"""The example on every target: ``--target xla`` (the default), and beside the Poplar SDK ``ipu``
and ``ipu-model``.

The script is run as its users run it, so this file needs no TensorFlow. Runs on Python 3.8.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = (
    "--seq-len 32 --units 8 --features 6 --batch-size 2 --gradient-accumulation 2 "
    "--steps-per-epoch 4"
).split()


@pytest.fixture
def run(target, tmp_path):
    """Return a function that runs the script and returns its output, warnings and figures."""

    def script(*arguments):
        figures = tmp_path / "out.json"
        done = subprocess.run(
            [
                sys.executable,
                str(ROOT / "recompute_lstm.py"),
                "--target",
                target,
                *SMALL,
                *arguments,
                "--json",
                str(figures),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=str(tmp_path),
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr, json.loads(figures.read_text())

    return script


@pytest.mark.long
@pytest.mark.ipus(1)
def test_a_report_without_checkpoints(run, target, tmp_path):
    output, _, figures = run(
        "--data", "constant", "--checkpoints", "0", "--no-recompute", "--report", "report"
    )
    assert "loss: " in output
    assert figures["target"] == {"auto": "xla"}.get(target, target)
    assert len(figures["losses"]) == 2
    assert figures["losses"][1] < figures["losses"][0]
    assert 0 < figures["always_live_bytes"] < figures["peak_bytes"] < figures["capacity_bytes"]
    assert {"liveness.json", "liveness.png"} <= {
        path.name for path in (tmp_path / "report").iterdir()
    }


@pytest.mark.long
@pytest.mark.ipus(1)
def test_sections_of_different_length(run):
    output, warnings, figures = run("--checkpoints", "2", "--no-recompute")
    assert "loss: " in output
    assert sorted(figures["sections"]) == [10, 11, 11]
    assert "32 steps can't be evenly divided into 3 sections" in warnings
