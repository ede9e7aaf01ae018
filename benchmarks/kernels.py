"""Where the time of a training step goes, kernel by kernel, beside PyTorch.

    python3 benchmarks/kernels.py resnet50 3
    python3 benchmarks/kernels.py transformer 0 --peers ours,torch --rows 30

Each peer runs in a process of its own, on one core, since the times of kernels that share several
cores cannot be added. Each framework's own profiler measures it. A kernel's time is without the
kernels that it calls. XLA numbers its kernels: the numbers are left out, so that those of one kind
are one row.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from peers import PEERS  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

STEPS = 5


class Event(NamedTuple):
    """A kernel that ran, on a thread: its begin and its length in picoseconds."""

    begin: int
    length: int
    kernel: str


def measure(name: str, workload: str, checkpoints: int) -> dict[str, Any]:
    """Return the seconds of a step of a peer, and what each kernel takes of it: calls, seconds."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    os.environ["KERAS_BACKEND"] = PEERS[name].backend  # read when Keras is imported
    build = importlib.import_module(f"peers.{PEERS[name].module}").build
    peer = build(name, WORKLOADS[workload], checkpoints)
    for _ in range(3):
        peer.step()
    begin = time.perf_counter()
    for _ in range(STEPS):
        peer.step()
    seconds = (time.perf_counter() - begin) / STEPS
    profiled = _in_torch if name == "torch" else _in_tensorflow
    return {"seconds": seconds, "kernels": profiled(peer.step)}


def _in_torch(step: Callable[[], Any]) -> dict[str, tuple[float, float]]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            step()
    found = {}
    for row in profiled.key_averages():
        found[row.key] = (row.count / STEPS, row.self_cpu_time_total / 1e6 / STEPS)
    return found


def _in_tensorflow(step: Callable[[], Any]) -> dict[str, tuple[float, float]]:
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profiler = tf.profiler.experimental
    with tempfile.TemporaryDirectory() as folder:
        # Level 2 names each kernel, and no call from Python.
        profiler.start(folder, profiler.ProfilerOptions(host_tracer_level=2, python_tracer_level=0))
        for _ in range(STEPS):
            step()
        profiler.stop()
        (file,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        space = xplane_pb2.XSpace.FromString(Path(file).read_bytes())
    calls: Counter[str] = Counter()
    picoseconds: Counter[str] = Counter()
    for plane in space.planes:
        for line in plane.lines:
            events = []
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                events.append(Event(event.offset_ps, event.duration_ps, kind(name)))
            for kernel, alone in own_times(events):
                # Calls from Python and methods of the runtime, such as Executor::Run, are none.
                if "::" not in kernel and line.name != "python":
                    calls[kernel] += 1
                    picoseconds[kernel] += alone
    return {name: (calls[name] / STEPS, picoseconds[name] / 1e12 / STEPS) for name in calls}


def kind(name: str) -> str:
    """Return the kind of a kernel: AddV2 of ``layer/add:AddV2``, fusion of ``fusion.12``."""
    return re.sub(r"[.#].*", "", re.split(r"(?<!:):(?!:)", name)[-1])


def own_times(events: Iterable[Event]) -> list[tuple[str, int]]:
    """Return for each event of a thread its kernel and its time without the events inside it."""
    found: list[list[Any]] = []
    around: list[tuple[int, int]] = []  # ends of the events around, and their places in ``found``
    for event in sorted(events, key=lambda event: (event.begin, -event.length)):
        while around and around[-1][0] <= event.begin:
            around.pop()
        if around:
            found[around[-1][1]][1] -= event.length
        around.append((event.begin + event.length, len(found)))
        found.append([event.kernel, event.length])
    return [(kernel, alone) for kernel, alone in found]


def main(argv: list[str] | None = None) -> int:
    """Print a table for each peer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("checkpoints", type=int)
    parser.add_argument("--peers", default="ours-without-jit,torch", help="(%(default)s)")
    parser.add_argument("--rows", type=int, default=20, help="of each table (%(default)s)")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    names = options.peers.split(",")
    if unknown := set(names) - set(PEERS):
        parser.error(f"--peers {', '.join(unknown)}: take some of {', '.join(PEERS)}")
    if options.one:
        print(json.dumps(measure(names[0], options.workload, options.checkpoints)))
        return 0
    for name in names:
        asked = [options.workload, str(options.checkpoints), "--peers", name, "--one"]
        command = [sys.executable, __file__, *asked]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            parser.error(f"{name}: {(done.stderr.splitlines() or ['no word'])[-1]}")
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"\n{name}: {1e3 * found['seconds']:.0f} ms per step\n")
        print("| kernel | calls | ms |\n|---|---|---|")
        kernels = sorted(found["kernels"].items(), key=lambda item: -item[1][1])
        for kernel, (calls, seconds) in kernels[: options.rows]:
            print(f"| {kernel} | {calls:.0f} | {1e3 * seconds:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
