"""The guides that are for one other backend; ``tests/docs`` runs all on TensorFlow."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[2]
GUIDE = {"jax": "several_devices", "torch": "device_budget"}


def test_the_guide_runs(tmp_path):
    backend = keras.config.backend()
    if backend not in GUIDE:
        pytest.skip(f"no guide is for {backend} alone")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "guides" / f"{GUIDE[backend]}.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("MiB" if backend == "jax" else "GiB") >= 4
