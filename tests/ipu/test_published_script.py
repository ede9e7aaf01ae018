"""An IPU script runs unchanged on the command line, and reports its memory as Poplar would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_recompute.ipu.reports.pva import openReport

ROOT = Path(__file__).parents[2]
LONG = "--seq-len 256 --units 16 --batch-size 8".split()


def run(folder: Path, *arguments: str) -> str:
    """Return what the script prints, with all reports on."""
    options = {"autoReport.all": "true", "autoReport.directory": str(folder)}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "keras_recompute.ipu",
            str(ROOT / "tests" / "ipu" / "published_style.py"),
            *LONG,
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={
            **os.environ,
            "POPLAR_ENGINE_OPTIONS": json.dumps(options),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def peak(folder: Path) -> int:
    """Return the peak of the only report, as scripts compute it with pva."""
    [report] = folder.glob("tf_report__*/profile.pop")
    compilation = openReport(str(report)).compilation
    steps = compilation.livenessProgramSteps
    return sum(t.memory.alwaysLiveBytes for t in compilation.tiles) + max(
        s.notAlwaysLiveMemory.bytes for s in steps
    )


@pytest.mark.long
def test_the_script_runs_and_its_checkpoints_lower_the_peak(tmp_path):
    """One program is compiled, in one execution of four microbatches. Two sections of 128 steps."""
    assert "loss: " in run(tmp_path / "with", "--checkpoints", "1")
    assert "loss: " in run(tmp_path / "without", "--checkpoints", "1", "--disable-recomputation")
    assert peak(tmp_path / "with") < 0.8 * peak(tmp_path / "without")
    beside = {file.name for file in tmp_path.glob("with/tf_report__*/*")}
    assert beside == {"profile.pop", "framework.json", "debug.cbor", "keras_recompute.json"}
