"""Data and model parallel training by ``keras.distribution``, on eight CPU devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
BATCH, WIDTH = 512, 64


def found_in_child(kind):
    done = subprocess.run(
        [sys.executable, HERE / "distributed_step.py", kind],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8",
            "PYTHONPATH": str(HERE.parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


# What one of eight devices has: of the batch, and of a kernel of (64, 64) numbers. At the peak of
# model parallel training it has gathered two arrays: the input of a layer, and a gradient.
@pytest.mark.parametrize(
    ("kind", "batches", "kernels", "gathered"),
    [("data", 8, 1, 0), ("model", 2, 4, 2)],
    ids=["data", "model"],
)
def test_each_device_holds_less_and_losses_are_the_plain_ones(kind, batches, kernels, gathered):
    found = found_in_child(kind)
    plain, ours = found["plain"], found["checkpointed"]
    np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-6)
    assert ours["temporary"] < 0.6 * plain["temporary"]
    for each in (plain, ours):
        assert abs(each["temporary"] - each["stated"]) <= 1024  # small constants on the CPU
        assert each["fed"] == 4 * BATCH * (WIDTH + 8) // batches
        assert each["kernel"] == 4 * WIDTH * WIDTH // kernels
        assert each["collectives"] == gathered * 4 * WIDTH * BATCH // batches
    planned = found["planned"]
    assert planned["peak"] <= planned["budget"]
    assert planned["said"] == pytest.approx(planned["peak"], rel=0.01)
    assert found["devices"] == 8
    assert "device='local' runs the step on one device" in found["refusal"]
    if kind == "model":
        assert found["indivisible"].startswith(
            "dense_odd/kernel has the shape (64, 6), and its layout (None, 'model') cannot divide "
            "that on a mesh of 2x4 devices: choose another mesh"
        )
