"""Whether long runs stay as they begin: memory, threads, open files and time, on Linux.

Writes results/soak.json.

    python3 benchmarks/soak.py               a quarter of an hour on two cores
    python3 benchmarks/soak.py --share 0.02  a fiftieth of it, printed alone

Repeated are updates of a small network by ``recompute_lstm.py``, which is looked at from outside;
epochs of ``fit`` of a compiled model; and models that are built, trained on one batch and dropped,
eagerly and compiled. These are held against plain Keras's, of which a process keeps some too. Each
part has a process of its own.

*At the beginning* is after the first hundredth part, when all is compiled. Seconds are those of the
tenth of the run that follows, and of its last tenth.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RESULTS = ROOT / "benchmarks" / "results" / "soak.json"

OPTIONS = (
    "--seq-len 32 --units 16 --features 16 --batch-size 4 --gradient-accumulation 1 "
    "--checkpoints 3 --steps-per-epoch"
)
PARTS = {  # what is repeated, and how often
    "updates of recompute_lstm.py": 20_000,
    "epochs of fit": 200,
    "models, eagerly": 500,
    "models of plain Keras, eagerly": 100,
    "models, compiled": 50,
    "models of plain Keras, compiled": 50,
}
SHORT, MEBIBYTE = 20, 2**20


class Watch:
    """What process ``pid`` holds after each of ``count`` rounds."""

    def __init__(self, pid: int, count: int) -> None:
        self._process, self._count, self._begin = (
            Path("/proc", str(pid)),
            count,
            max(count // 100, 2),
        )
        self._at_first: dict[str, int] = {}
        self._moments: list[float] = []

    def round(self) -> None:
        """Note that one round more is done."""
        self._moments.append(time.perf_counter())
        if len(self._moments) == self._begin:
            self._at_first = self._held()

    def row(self) -> dict[str, Any]:
        """Return the figures of the run, which is at its end."""
        moments, tenth, first, last = self._moments, self._count // 10, self._at_first, self._held()
        if len(moments) != self._count:
            raise RuntimeError(f"{len(moments)} rounds of {self._count} were done")
        return {
            "rounds": self._count,
            **{name: [first[name], last[name]] for name in first},
            "seconds": [
                (moments[self._begin - 1 + tenth] - moments[self._begin - 1]) / tenth,
                (moments[-1] - moments[-1 - tenth]) / tenth,
            ],
        }

    def _held(self) -> dict[str, int]:
        status = (self._process / "status").read_text()
        resident = next(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")
        )
        counted = {
            name: len(os.listdir(self._process / folder))
            for name, folder in (("threads", "task"), ("files", "fd"))
        }
        return {"resident_bytes": 1024 * resident, **counted}


def updates(count: int) -> dict[str, Any]:
    """Train by the script, which says a line for each update."""
    # The last update is looked at while the script still runs, so a few more are asked for.
    command = [
        sys.executable,
        str(ROOT / "recompute_lstm.py"),
        *OPTIONS.split(),
        str(count + SHORT),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watch, done = Watch(process.pid, count), 0
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("update ") and done < count:
                watch.round()
                done += 1
                row = watch.row() if done == count else {}
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return row


def network(*, ours: bool) -> Any:
    """Return a small model, ours with checkpoints."""
    import keras

    import keras_recompute as kr

    x = inputs = keras.Input((16,))
    for _ in range(4):
        x = keras.layers.Dense(16, activation="tanh")(x)
        x = kr.RecomputationCheckpoint()(x) if ours else x
    return (kr.Model if ours else keras.Model)(inputs, keras.layers.Dense(1)(x))


def epochs(count: int) -> dict[str, Any]:
    """Fit one model for ``count`` epochs of 50 steps."""
    import keras
    import numpy as np

    watch, model = Watch(os.getpid(), count), network(ours=True)
    model.compile("adam", "mse", jit_compile=True)
    x = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_, **__: watch.round())
    model.fit(x, x[:, :1], batch_size=8, epochs=count, verbose=0, callbacks=[note])
    return watch.row()


def models(count: int, *, ours: bool, compiled: bool) -> dict[str, Any]:
    """Build, train on a batch, and drop one model after the other."""
    import numpy as np

    watch, x = Watch(os.getpid(), count), np.ones((8, 16), np.float32)
    for _ in range(count):
        model = network(ours=ours)
        model.compile("adam", "mse", jit_compile=compiled, run_eagerly=not compiled)
        model.train_on_batch(x, x[:, :1])
        del model
        gc.collect()
        watch.round()
    return watch.row()


def measure(part: str, count: int) -> dict[str, Any]:
    """Return the row of one part."""
    if part.startswith("updates"):
        return updates(count)
    if part.startswith("epochs"):
        return epochs(count)
    return models(count, ours="plain" not in part, compiled="compiled" in part)


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the rows as a table in Markdown; what does not change stands there once."""

    def change(values: list[float], form: str) -> str:
        return " to ".join(dict.fromkeys(form.format(value) for value in values))

    lines = [
        "| | resident MiB | threads | open files | milliseconds each |",
        "|---|---|---|---|---|",
    ]
    for part, row in rows.items():
        memory = change([value / MEBIBYTE for value in row["resident_bytes"]], "{:,.1f}")
        seconds = change([1000 * value for value in row["seconds"]], "{:,.3g}")
        counts = [change(row[name], "{}") for name in ("threads", "files")]
        lines.append(f"| {row['rounds']:,} {part} | {memory} | {' | '.join(counts)} | {seconds} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run every part in a process of its own, print a table, keep the figures of a whole run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the rounds of each part (1)")
    parser.add_argument("--part", choices=PARTS, help="this one alone")
    parser.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(
            json.dumps(
                measure(options.one, max(math.ceil(options.share * PARTS[options.one]), SHORT))
            )
        )
        return 0
    rows = {}
    for part in [options.part] if options.part else PARTS:
        command = [sys.executable, __file__, "--one", part, "--share", str(options.share)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        rows[part] = json.loads(done.stdout.splitlines()[-1])
    print(table(rows))
    if options.share == 1 and not options.part:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
