"""The saving is real for whole networks, and the rows of residuals say how large it is. See ``peaks`` for the networks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, float]]:
    # By XLA's own order. The one that this package sets for the sake of recurrent networks puts the weight gradients of a
    # section last, so that all gradients of its activations wait for them: for layers without loops it is the worse one.
    flags = {"XLA_FLAGS": "--xla_cpu_enable_concurrency_optimized_scheduler=true"}
    command = [sys.executable, "-m", "tests.models.peaks", "mlp", "resnet", "transformer"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env={**os.environ, **flags}, capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["network"]: line for line in lines}


@pytest.mark.parametrize("network", ["mlp", "resnet", "transformer"])
def test_checkpoints_every_root_of_n_layers_take_half_the_memory_or_less(figures, network):
    found = figures[network]
    assert found["sections"] in (6, 7, 8)
    assert found["ours_temporary"] <= 0.5 * found["plain_temporary"], found
    for model in ("plain", "ours"):
        off = found[f"{model}_predicted"] / found[f"{model}_live_peak"] - 1
        assert abs(off) <= 0.25, f"{model}: the rows predict {off:+.0%} of the compiled peak, {found}"
