"""Checkpointed functions on eight devices, in a process that has as many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
def test_gradients_on_eight_devices(axes):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, str(HERE / "sharded_functions.py"), axes]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "equal: 18\n"
