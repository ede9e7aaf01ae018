"""Training steps of models of full size on the GPU of this machine, beside what was compiled.

    python3 benchmarks/full_size_runs.py --compile         on any machine, with the compilers
    python3 benchmarks/full_size_runs.py                   on one with the GPU; writes the page
    python3 benchmarks/full_size_runs.py --page            the table alone

Each model of ``full_size.py`` trains, plain and with a checkpoint behind every block, if its step
has been compiled for this GPU and fits. Its process may take that much memory and little more. As
many processes compile at once as fit on the GPU. One at a time trains: three steps, whose losses
are kept, and five that are timed. A step that has figures is not run again. Answers are kept in
``results/full_size.json``. Needs KerasHub, and JAX with CUDA.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

import full_size  # noqa: E402
from full_size import GIB, MODELS, PAGE, RESULTS, STEPS, answer_missing, cell  # noqa: E402
from gpu import timed, train, values_of  # noqa: E402
from readme_table import replace_table  # noqa: E402

WAYS = STEPS[0], STEPS[-1]
DEVICE = "h200"
UPDATES, TIMED = 3, 5
# A run may take more than what was compiled: kernels are tried out, and memory comes in blocks.
SPARE, CONTEXT_BYTES = 1.05, 3 * GIB


def trained(name: str, how: str, lock: str) -> dict[str, Any]:
    """Return the allocator's peak, losses and seconds of steps on the GPU of this machine.

    Whoever holds the file ``lock`` trains.
    """
    import keras
    import numpy as np

    import keras_recompute as kr
    from keras_recompute.fits import model_sources
    from keras_recompute.fits.answer import Size, sample_of

    of = MODELS[name]
    model_sources.abstract = nullcontext  # weights with values
    keras.utils.set_random_seed(0)
    model = model_sources.build(of.source, dtype="mixed_bfloat16", lora=of.lora).model
    loss = model.loss or "mse"
    model.compile("adamw", loss)
    x, y = sample_of(model, Size(of.batch, of.length, of.lengths))

    def values(tensor: Any, sized: Any) -> Any:
        rng = np.random.default_rng(0)
        return values_of(tensor.name, tuple(sized.shape), sized.dtype, rng)

    batch = keras.tree.map_structure(values, model.input, x), values(model.output, y)
    if how == STEPS[-1]:
        model = kr.checkpointed(model, layers=of.blocks)
        model.compile("adamw", loss)
    start = time.perf_counter()
    losses = [train(model, batch)]
    first = time.perf_counter() - start
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        losses += [train(model, batch) for _ in range(UPDATES - 1)]
        return {"losses": losses, "first": first, **timed(model, batch, TIMED)}


def run_missing(names: Iterable[str], wait: float) -> None:
    """Run what has no figures yet, side by side while memory lasts; keep the answers.

    Processes that are not done after ``wait`` seconds are ended.
    """
    results = json.loads(RESULTS.read_text())
    total = memory_of_gpu()
    waiting = missing(names, results, total)
    running: list[tuple[tuple[str, str, int], Any, Any]] = []
    deadline = time.monotonic() + wait
    with tempfile.NamedTemporaryFile() as lock:
        while waiting or running:
            free = total - sum(taken for (_, _, taken), *_ in running)
            fitting = next((each for each in waiting if each[-1] <= free), None)
            if fitting is not None:
                waiting.remove(fitting)
                running.append((fitting, *started(fitting, total, lock.name)))
            for each in [each for each in running if each[1].poll() is not None]:
                running.remove(each)
                (name, how, _), child, files = each
                found = results[key_of(name, how)] = said(child, files)
                print(name, how, found, flush=True)
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            if time.monotonic() > deadline:
                waiting.clear()
                for _, child, _ in running:
                    child.kill()
            time.sleep(0.2)


def missing(
    names: Iterable[str], results: dict[str, Any], total: int
) -> list[tuple[str, str, int]]:
    """Return what is to be run, with the bytes that each process may take of ``total``."""
    found = []
    for name in names:
        for how in WAYS:
            needed = results.get(f"{name}, {DEVICE}, {how}", {}).get("needed", total)
            taken = int(needed * SPARE + CONTEXT_BYTES)
            if "peak" not in results.get(key_of(name, how), {}) and taken <= total:
                found.append((name, how, taken))
    return found


def key_of(name: str, how: str) -> str:
    """Return the key of a run among the results."""
    return f"{name}, {DEVICE}, run {how}"


def memory_of_gpu() -> int:
    """Return the bytes of the first GPU of this machine."""
    asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return int(shown.split()[0]) * 2**20


def started(each: tuple[str, str, int], total: int, lock: str) -> tuple[Any, Any]:
    """Return the process of a run, and the files of what it prints."""
    name, how, taken = each
    share = f"{(taken - CONTEXT_BYTES / 3) / total:.4f}"
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": share,
    }
    output, errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
    command = [sys.executable, __file__, "--one", name, how, lock]
    child = subprocess.Popen(command, env=environment, stdout=output, stderr=errors)
    return child, (output, errors)


def said(child: Any, files: Any) -> dict[str, Any]:
    """Return the figures that a process printed, or its error."""
    for file in files:
        file.seek(0)
    output, errors = (file.read().strip().splitlines() for file in files)
    if child.returncode == 0:
        return json.loads(output[-1])
    return {"error": errors[-1][:160] if errors else f"exit {child.returncode}"}


def table(results: dict[str, Any]) -> str:
    """Return the table of all runs, each cell plain and with checkpoints."""
    titles = ["model, batch", "compiled without the GPU, GiB", "allocator's peak, GiB"]
    titles += ["seconds per step", "first step, s", "loss of the third step"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, of in MODELS.items():
        runs = [results.get(key_of(name, how), {}) for how in WAYS]
        if not any("peak" in run for run in runs):
            continue
        compiled = [results.get(f"{name}, {DEVICE}, {how}", {}) for how in WAYS]
        row = [f"{name}, {of.size}", cell(compiled, "needed", GIB), cell(runs, "peak", GIB)]
        row += [cell(runs, "seconds", 1, 3), cell(runs, "first", 1, 0)]
        losses = [{"loss": run["losses"][-1]} if "losses" in run else {} for run in runs]
        lines.append(f"| {' | '.join([*row, cell(losses, 'loss', 1, 4)])} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--wait", type=float, default=3600, help="seconds of all runs together")
    parser.add_argument("--compile", action="store_true", help="find out what runs will need")
    parser.add_argument("--page", action="store_true", help="write the table alone")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(trained(*options.one)))
        return
    if options.compile:
        asked = [(name, DEVICE, how) for name in options.only for how in WAYS]
        answer_missing(full_size.__file__, asked, RESULTS)
    elif not options.page:
        run_missing(options.only, options.wait)
    replace_table(PAGE, "full-size-runs", table(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
