"""Measure one peer in this process, and print what came out as one line of JSON.

``compare.py`` starts it.

    python3 benchmarks/one_peer.py PEER WORKLOAD CHECKPOINTS STEPS
    python3 benchmarks/one_peer.py --rate  the machine's matrix product rate

Memory is measured alike for all: pages resident before the first step, with everything imported,
the data made and a tiny model of the kind trained, so that the framework itself is idle memory;
against the largest number resident during as many steps as were timed. These are others than the
timed ones, since the C library maps each piece of memory anew while it is measured, which takes
time. What the first step alone takes, such as compiling, is not in it; what it leaves behind is.
What the C library holds back is given to the system before both. On a GPU it is the peak of the
framework's own allocator over what it held before the first step.

Peers whose steps are long take fewer of them: none is begun after ``ENOUGH_SECONDS`` of steps.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from peers import ON_DEVICE, PEERS, Peer  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

ENOUGH_SECONDS = 10


def measure(name: str, workload_name: str, checkpoints: int, steps: int) -> dict[str, object]:
    """Return the figures of one peer."""
    workload, entry = WORKLOADS[workload_name], PEERS[name]
    os.environ["KERAS_BACKEND"] = entry.backend  # read when Keras is imported
    from keras_recompute.liveness.process import process_memory

    build = importlib.import_module(f"peers.{entry.module}").build
    build(name, WORKLOADS[workload.tiny], checkpoints and 1).step()
    peer = build(name, workload, checkpoints)
    with process_memory() as idle:
        pass
    idle_device_bytes = peer.device.held_bytes() if peer.device else 0
    begin = time.perf_counter()
    loss, norm = peer.step()
    first = time.perf_counter() - begin
    if peer.device:
        peer.device.forget_peak()
    seconds = _seconds(peer, steps)
    with process_memory() as training:
        _seconds(peer, steps)
    measured, method = None, training.method
    if peer.device:
        measured, method = peer.device.peak_bytes() - idle_device_bytes, ON_DEVICE
    elif idle.idle_bytes is not None and training.peak_bytes is not None:
        measured = max(training.peak_bytes - idle.idle_bytes, 0)
    return {
        "peer": name,
        "workload": workload_name,
        "checkpoints": checkpoints,
        "loss": loss,
        "gradient_norm": norm,
        "first_step_seconds": first,
        "step_seconds": statistics.median(seconds),
        "timed_steps": len(seconds),
        "measured_bytes": measured,
        "measured_by": method,
        "temporary_bytes": peer.temporary_bytes(),
        "plan": peer.plan,
        "versions": _versions(entry.packages),
    }


def _seconds(peer: Peer, steps: int) -> list[float]:
    """Take ``steps`` steps, or fewer where they are long, and return the seconds of each."""
    seconds: list[float] = []
    while len(seconds) < steps and sum(seconds) < ENOUGH_SECONDS:
        begin = time.perf_counter()
        peer.step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def matrix_rate() -> dict[str, object]:
    """Return the rate of large float32 matrix products by TensorFlow's own kernels, and the name of
    what computed them.
    """
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)
    rows, inner, columns = 32768, 512, 1024
    a, b = tf.random.normal((rows, inner)), tf.random.normal((inner, columns))
    best = 0.0
    for _ in range(8):
        begin = time.perf_counter()
        tf.matmul(a, b)
        tf.test.experimental.sync_devices()
        best = max(best, 2 * rows * inner * columns / (time.perf_counter() - begin))
    gpus = tf.config.list_physical_devices("GPU")
    name = (
        tf.config.experimental.get_device_details(gpus[0]).get("device_name", "a GPU")
        if gpus
        else None
    )
    return {
        "flops_per_second": best,
        "device": name or f"{len(os.sched_getaffinity(0))} {platform.machine()} cores",
    }


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    return {
        package: getattr(importlib.import_module(package), "__version__", "?")
        for package in packages
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--rate"]:
        print(json.dumps(matrix_rate()))
    else:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
