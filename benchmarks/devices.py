"""The memory of training steps on GPUs and TPUs that are not here.

The steps of this package, plain Keras and JAX, with Adam, are compiled by the devices' own
compilers.

    python3 benchmarks/devices.py                                all; writes the results
    python3 benchmarks/devices.py --device h100 --workload lstm  some, printed alone

Needs JAX with the compilers, here or in the environment of KERAS_RECOMPUTE_DEVICES_PYTHON. The
networks are those of ``compare.py``, without checkpoints and with as many as there; JAX's are scans
over ``jax.checkpoint``, and the transformer of ours has its blocks in a loop too (``scan_layers``).
Nothing is run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from readme_table import replace_table  # noqa: E402
from workloads import WORKLOADS, Workload  # noqa: E402

import keras_recompute.engine  # noqa: E402, F401  first of all: what is compiled before it has another order
from keras_recompute.errors import DeviceError  # noqa: E402
from keras_recompute.liveness.device_compilers import compiler, find_device  # noqa: E402
from keras_recompute.sizes import format_bytes  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "devices.json"
DEVICES = ("h100", "v5e")
TITLES = {
    "lstm": "LSTM(256), 2048 steps of 512, batch 16",
    "transformer-batch-8": "12 blocks of 256, 512 tokens, batch 8",
    "dense": "32 dense layers of 1024, batch 4096",
    "residual": "16 residual blocks of 64 channels, 64 x 64, batch 32",
}
PEERS = ("Keras", "JAX", "keras_recompute")
SCANNED = ("transformer-batch-8",)  # whose equal blocks take less memory in a loop, on a GPU


def of_tensorflow(peer: str, workload: Workload, checkpoints: int, device: str) -> dict[str, Any]:
    """Return the figures of a step of Keras's or ours."""
    import tensorflow as tf
    from peers import keras_peers, ours
    from peers.tensorflow_step import adam_step
    from workloads import data

    from keras_recompute.liveness import profile

    if peer == "Keras":
        forward, variables = keras_peers.plain_or_recomputed("keras", workload, 0)
    else:
        made = ours.model(workload, checkpoints, scan_layers=workload.name in SCANNED)
        forward, variables = lambda x: made(x, training=True), made.trainable_variables
    step = adam_step(forward, list(variables))
    program = profile(
        step, *(tf.TensorSpec(array.shape, array.dtype) for array in data(workload)), device=device
    )
    totals = program.compiler_totals
    return {
        "temporary_bytes": totals["stated_temp_bytes"],
        "branches": totals.get("branches_taken", 0),
        "seconds": program.compile_seconds,
        "compiler": program.compiled_by,
    }


def of_jax(workload: Workload, counts: tuple[int, ...], device: str) -> list[dict[str, Any]]:
    """Return the figures of JAX's steps."""
    python = os.environ.get(compiler.PYTHON) or sys.executable
    request = json.dumps(compiler.request_for(find_device(device)))
    command = [
        python,
        str(ROOT / "benchmarks" / "peers" / "jax_on_device.py"),
        request,
        workload.name,
        *map(str, counts),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(
            f"JAX could not compile {workload.name} for {device}: "
            f"{done.stderr.strip().splitlines()[-1]}"
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_of(workload: Workload, device: str) -> list[dict[str, Any]]:
    """Return a row for each peer and number of checkpoints."""
    rows = [{"peer": "Keras", "checkpoints": 0, **of_tensorflow("Keras", workload, 0, device)}]
    rows += [{"peer": "JAX", **found} for found in of_jax(workload, workload.checkpoints, device)]
    for count in workload.checkpoints:
        rows.append(
            {
                "peer": PEERS[-1],
                "checkpoints": count,
                **of_tensorflow(PEERS[-1], workload, count, device),
            }
        )
    for row in rows:
        row.update(workload=workload.name, device=device)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]], devices: tuple[str, ...]) -> str:
    """Return the table of docs/benchmarks.md, in Markdown: temporaries on each device."""
    found = {
        (r["workload"], r["checkpoints"], r["peer"], r["device"]): r["temporary_bytes"]
        for r in rows
    }
    where = " / ".join(
        find_device(device).title.removeprefix("NVIDIA ").split(" 80GB")[0] for device in devices
    )
    lines = [
        f"| temporaries on {where} | checkpoints | {' | '.join(PEERS)} |",
        "|---|---|" + "---|" * len(PEERS),
    ]
    for name, title in TITLES.items():
        for count in WORKLOADS[name].checkpoints:
            cells = []
            for peer in PEERS:
                sizes = [found.get((name, count, peer, device)) for device in devices]
                cells.append(
                    " / ".join("" if size is None else format_bytes(size) for size in sizes).strip(
                        " /"
                    )
                )
            if any(cells):
                lines.append(f"| {title} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Compile what was asked for, and print or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device",
        action="append",
        help="a device of keras_recompute.liveness.devices() (h100 and v5e)",
    )
    parser.add_argument(
        "--workload", action="append", choices=tuple(TITLES), help="one network instead of all"
    )
    options = parser.parse_args(argv)
    devices, names = tuple(options.device or DEVICES), options.workload or tuple(TITLES)
    rows = [row for device in devices for name in names for row in rows_of(WORKLOADS[name], device)]
    print(table(rows, devices))
    if not options.device and not options.workload:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        replace_table(ROOT / "docs" / "benchmarks.md", "devices", table(rows, devices))
    return 0


if __name__ == "__main__":
    sys.exit(main())
