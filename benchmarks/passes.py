"""What each pass for a compiler is worth: ``python3 benchmarks/passes.py`` leaves them out one by
one, and all together.

Models are a small LSTM with 7 checkpoints, a transformer of 8 blocks with 3, and ResNet50 (64 x 64,
batch 8) with one behind about every 13th layer. Printed for each: the temporaries of the compiled
program, seconds of the first step, which traces and compiles, and the least of the later ones; each
as it is, then as a ratio to that with all passes, in processes of their own. With ``--device h100``
that device's own compiler makes the programs (see ``devices.py``): nothing is run, and in place of
seconds stand the branches that a step takes, for which a GPU waits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

MIB = 2**20
STEPS = 5
MODELS = ("lstm", "transformer", "resnet50")


def build(name: str) -> Any:
    """Return a model with checkpoints, whose inputs have a batch size."""
    import keras
    from peers.ours import model
    from workloads import Workload

    import keras_recompute as kr

    keras.utils.set_random_seed(0)
    if name == "resnet50":
        inputs = keras.Input((64, 64, 3), batch_size=8)
        return kr.checkpointed(
            keras.applications.ResNet50(weights=None, input_tensor=inputs, classes=10), every=13
        )
    if name == "lstm":
        return model(
            Workload(
                "small", "lstm", batch=16, length=512, features=128, units=128, checkpoints=(7,)
            ),
            7,
        )
    blocks = {"features": 128, "units": 512, "checkpoints": (3,), "blocks": 8, "heads": 4}
    return model(Workload("small", "transformer", batch=4, length=256, **blocks), 3)


def measure(name: str, left_out: list[str], device: str | None) -> dict[str, float]:
    """Return the figures of one model without some passes, on a device that is named without the
    seconds.
    """
    import numpy as np
    import tensorflow as tf

    from keras_recompute.engine.passes import leaving_out
    from keras_recompute.liveness import profile
    from keras_recompute.liveness.program import held_per_step

    model = build(name)
    weights = [v.value for v in model.trainable_variables]
    x = tf.constant(np.random.default_rng(0).normal(size=model.inputs[0].shape), tf.float32)

    @tf.function(jit_compile=True, autograph=False)
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        return loss, tape.gradient(loss, weights)

    seconds = []
    if device:
        with leaving_out(*left_out):
            totals = profile(step, x, device=device).compiler_totals
        return {
            "temporaries": totals["stated_temp_bytes"] / MIB,
            "branches": totals["branches_taken"],
        }
    with leaving_out(*left_out):
        for _ in range(STEPS + 1):
            start = time.perf_counter()
            step(x)[0].numpy()
            seconds.append(time.perf_counter() - start)
        record = profile(step, x)
    temporaries = max(held_per_step(record.buffers, ("temporary",), record.program_steps))
    return {"temporaries": temporaries / MIB, "first": seconds[0], "step": min(seconds[1:])}


def main(argv: list[str] | None = None) -> int:
    """Print a table for each model."""
    from keras_recompute.engine.passes import PASSES
    from keras_recompute.liveness.device_compilers import find_device

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", choices=MODELS, help="one model instead of all")
    parser.add_argument("--device", help="a device of keras_recompute.liveness.devices()")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(measure(options.one[0], options.one[1:], options.device)))
        return 0
    columns = {
        "temporaries": ("temporaries, MiB", 1),
        "first": ("first step, s", 1),
        "step": ("step, s", 3),
    }
    backend, on_device = "cpu", []
    if options.device:
        columns = {"temporaries": ("temporaries, MiB", 1), "branches": ("branches", 0)}
        backend, on_device = find_device(options.device).backend, ["--device", options.device]
    for name in options.model or MODELS:
        titles = " | ".join(title for title, _ in columns.values())
        print(f"\n| {name}, without | {titles} |\n|---|{'---|' * len(columns)}", flush=True)
        whole: dict[str, float] = {}
        for_xla = [
            each.name for each in PASSES.values() if {"xla", f"xla on {backend}"} & set(each.on)
        ]
        for label, left_out in [
            ("none", []),
            *((each, [each]) for each in for_xla),
            ("all of them", for_xla),
        ]:
            command = [sys.executable, __file__, *on_device, "--one", name, *left_out]
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            whole = whole or found
            cells = [f"{found[key]:.{digits}f}" for key, (_, digits) in columns.items()]
            ratios = [
                f" ({found[key] / whole[key]:.2f})" if left_out and whole[key] else ""
                for key in columns
            ]
            print(f"| {label} | {' | '.join(map(''.join, zip(cells, ratios)))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
