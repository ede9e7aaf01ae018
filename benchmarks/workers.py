"""What workers take over one process on the same cores: ``python3 benchmarks/workers.py``.

The same batch is trained on by ``fit`` in one process, and divided between the workers of a cluster
on this machine, with checkpoints and compiled by XLA. Named are the median seconds per step, and
those of the collective alone that sums gradients of that size; processes take turns. Run it on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

STEPS, WARM = 12, 4
WORKLOADS = ("recurrent", "dense", "convolutions")


def build(name: str) -> tuple[Any, tuple[int, ...], int]:
    """Return a model, the shape of a sample, and the batch."""
    import keras

    import keras_recompute as kr

    if name == "recurrent":
        inputs = keras.Input((512, 128))
        layer, state, outputs = kr.LSTM(256, return_sequences=True, return_state=True), None, []
        for begin in range(0, 512, 64):
            output, *state = layer(kr.TimeSlice(begin, begin + 64)(inputs), initial_state=state)
            state = kr.RecomputationCheckpoint()(state)
            outputs.append(output)
        x = keras.layers.Concatenate(axis=1)(outputs)
    elif name == "dense":
        x = inputs = keras.Input((1024,))
        for _ in range(8):
            x = kr.RecomputationCheckpoint()(keras.layers.Dense(1024, activation="tanh")(x))
    else:
        x = inputs = keras.Input((32, 32, 32))
        for _ in range(6):
            x = kr.RecomputationCheckpoint()(
                keras.layers.Conv2D(32, 3, padding="same", activation="relu")(x)
            )
    batch = {"recurrent": 32, "dense": 1024, "convolutions": 32}[name]
    return kr.Model(inputs, keras.layers.Dense(1)(x)), inputs.shape[1:], batch


def measure(name: str, strategy: Any) -> dict[str, float]:
    """Return the seconds of a step, and of the sum of its gradients over the processes of
    ``strategy``, if there are any.
    """
    import contextlib

    import keras
    import numpy as np
    import tensorflow as tf

    moments: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: moments.append(time.perf_counter())
    )
    with strategy.scope() if strategy else contextlib.nullcontext():
        model, shape, batch = build(name)
        model.compile("sgd", "mse", jit_compile=True)
    x = np.random.default_rng(0).normal(size=(batch, *shape)).astype(np.float32)
    y = np.zeros((batch, *model.output_shape[1:]), np.float32)
    data = (
        tf.data.Dataset.from_tensors((x, y))
        .unbatch()
        .batch(batch, drop_remainder=True)
        .repeat(STEPS + WARM)
    )
    model.fit(data, verbose=0, callbacks=[note])
    found = {"step": statistics.median(b - a for a, b in zip(moments[WARM - 1 :], moments[WARM:]))}
    if strategy:
        gradients = tf.zeros([sum(int(np.prod(v.shape)) for v in model.trainable_variables)])
        collective = tf.function(lambda: strategy.reduce("SUM", gradients, axis=None))
        times = []
        for _ in range(STEPS + WARM):
            begin = time.perf_counter()
            collective().numpy()
            times.append(time.perf_counter() - begin)
        found["collective"] = statistics.median(times[WARM:])
    return found


def run(name: str, workers: int) -> dict[str, float]:
    """Return what ``measure`` found in one process, or in the first of several workers."""
    launcher = (
        ["-m", "keras_recompute.distribute", "--workers", str(workers)] if workers > 1 else []
    )
    command = [sys.executable, *launcher, __file__, "--one", name, "--workers", str(workers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("{"))
    )
    return found


def main(argv: list[str] | None = None) -> int:
    """Measure each workload in rounds and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        if options.workers == 1:
            print(json.dumps(measure(options.one, None)))
        else:
            from keras_recompute.distribute import join

            with join() as strategy:
                print(json.dumps(measure(options.one, strategy)), flush=True)
        return 0
    print(
        f"{'':14}{'one process':>12}{f'{options.workers} workers':>12}"
        f"{'ratio':>8}{'collective':>12}"
    )
    for name in WORKLOADS:
        rounds = [(run(name, 1), run(name, options.workers)) for _ in range(options.rounds)]
        alone = statistics.median(one["step"] for one, _ in rounds)
        together = statistics.median(many["step"] for _, many in rounds)
        collective = statistics.median(many["collective"] for _, many in rounds)
        print(
            f"{name:14}{alone:10.3f} s{together:10.3f} s{together / alone:8.2f}{collective:10.4f} "
            "s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
