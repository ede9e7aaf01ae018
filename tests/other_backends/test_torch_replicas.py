"""PyTorch's DistributedDataParallel around a model with checkpoints, in two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch_replica

SCRIPT, SECONDS = Path(torch_replica.__file__), 120
ROOT = SCRIPT.parents[2]


def test_two_processes_train_as_one(tmp_path):
    model = torch_replica.build()
    wanted = torch_replica.train(model, *torch_replica.data())
    # A file, since a port may be taken by the time that a process binds it.
    command = [sys.executable, SCRIPT, tmp_path / "rendezvous"]
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdout": subprocess.PIPE}
    started = []
    for rank in ("0", "1"):
        started.append(subprocess.Popen([*command, rank, "2"], text=True, **options))
    try:
        printed = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    found = [json.loads(text.splitlines()[-1]) for text in printed]
    # The mean over the batch is that of the means over its halves.
    losses = np.mean([each["losses"] for each in found], axis=0)
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    weights = [float(np.abs(each).sum()) for each in model.get_weights()]
    for each in found:
        np.testing.assert_allclose(each["weights"], weights, rtol=1e-6)
