"""The saving is real for whole networks, and the rows of residuals say how large it is. See
``peaks`` for the networks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# ``test_execution_plan`` and engine/test_memory.py hold small networks to it.
pytestmark = pytest.mark.long
# XLA reads its options once per process: the order of its other scheduler, and of its own.
ORDERS = {"low memory": "false", "concurrency": "true"}
NETWORKS = {"low memory": ["mlp", "resnet", "transformer"], "concurrency": ["mlp"]}
# Plain networks are ordered by XLA alone: in its low memory order a dense one takes twice its
# residuals, because the gradients of all weights come last, and a convolutional one half of them,
# computed again from few.
PREDICTED = {"low memory": "ours", "concurrency": "plain"}
EACH = pytest.mark.parametrize(
    ("order", "network"),
    [(order, name) for order in ORDERS for name in NETWORKS[order]],
    indirect=["order"],
    scope="module",
)


@pytest.fixture(scope="module")
def order(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def figures(order) -> dict[str, dict[str, float]]:
    option = f"--xla_cpu_enable_concurrency_optimized_scheduler={ORDERS[order]}"
    flags = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {option}"}  # the last one counts
    command = [
        sys.executable,
        "-m",
        "tests.models.peaks",
        "--predict",
        PREDICTED[order],
        *NETWORKS[order],
    ]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[3],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["network"]: line for line in lines}


@EACH
def test_checkpoints_every_root_of_n_layers_take_half_the_memory_or_less(figures, network):
    found = figures[network]
    assert found["sections"] in (6, 7, 8)
    assert found["ours_temporary"] <= 0.5 * found["plain_temporary"], found


@EACH
def test_the_rows_of_residuals_predict_the_peak(figures, network, order):
    found = figures[network]
    model = PREDICTED[order]
    off = found[f"{model}_predicted"] / found[f"{model}_live_peak"] - 1
    assert abs(off) <= 0.25, f"{model}: the rows predict {off:+.0%} of the compiled peak, {found}"
