"""Models that nobody here wrote: ``python3 benchmarks/zoo.py`` trains one of every family and
writes ``docs/zoo.md``.

Each model runs in a process of its own, with random weights; nothing is downloaded. Memory is that
of a whole training step, the squares of all outputs as the loss, and the update with SGD or with
Adam: the temporaries of the compiled program, of the plain model with that of XLA's two schedulers
with which it takes less. For values and seconds one step is a loss (the mean square of all outputs)
and the gradients of all weights, of the plain Keras model, of ``checkpointed(model,
every=round(sqrt(layers)))`` or, where its blocks stand inside one layer, of these blocks by name,
and of the leanest plan of ``kr.plan``: with and without jit in float32, and without jit in float64.
Compared are loss and gradients (beside them stands how far those of the plain model with jit are
from its own in float64, unless it draws random numbers), the least seconds per step of some that
take turns, and seconds of the processor of the first one, which traces and compiles. KerasHub's
models need ``pip install keras-hub``; without it their rows say so. ``--only NAME`` runs one model
and keeps the other rows; ``--memory`` compiles alone, which a busy machine does as well, and
``--times`` runs alone, in float32: both keep the other figures of the rows.

Bars are 0.6 of the plain temporaries for ``every=`` and 0.45 for the leanest plan. Where one is
missed, the table says what holds it: the largest temporary at the peak, its share of all of them
then, and the phase, operation and layer that made it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from zoo_models import BLOCKS, HUB, IMAGES, build  # noqa: E402
from zoo_page import OPTIMIZERS, line, page  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "zoo.json", ROOT / "docs" / "zoo.md"
STEPS = 6
BUDGETS = (0.75, 0.5)  # of the peak of the plain step

# XLA's other scheduler on a CPU: a plain model may take less with it.
LOW_MEMORY = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


class Steps:
    """The training step of a model that leaves everything but the compiled function as it was."""

    def __init__(self, model: Any, inputs: list[Any]) -> None:
        import keras
        import tensorflow as tf

        self._model, self._inputs = model, [tf.constant(value) for value in inputs]
        self._state = [(v.value, v.numpy()) for v in model.variables]
        variables = [v.value for v in model.trainable_variables]

        def step(*given: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                results = model(keras.tree.pack_sequence_as(model.input, given), training=True)
                loss = tf.add_n([tf.reduce_mean(tf.square(y)) for y in keras.tree.flatten(results)])
            return loss, [
                None if g is None else tf.convert_to_tensor(g)
                for g in tape.gradient(loss, variables)
            ]

        self._step = step
        self._functions: dict[bool, Any] = {}

    def __call__(self, *, jit: bool) -> tuple[float, list[Any]]:
        """Run one step; return its seconds and what it returns.

        The first time they are seconds of the processor, with those to trace and compile.
        """
        import tensorflow as tf

        clock = time.perf_counter
        if jit not in self._functions:
            clock = time.process_time
            self._functions[jit] = tf.function(self._step, jit_compile=jit, autograph=False)
        for variable, value in self._state:
            variable.assign(value)
        start = clock()
        loss, gradients = self._functions[jit](*self._inputs)
        found = [loss.numpy(), *(g.numpy() for g in gradients if g is not None)]
        return clock() - start, found


def beside(plain: Steps, ours: Steps, *, jit: bool) -> dict[str, Any]:
    """Return the seconds of first steps and of later ones, of both, and how far apart their results
    are.
    """
    (first, wanted), (our_first, found) = plain(jit=jit), ours(jit=jit)
    seconds = [(plain(jit=jit)[0], ours(jit=jit)[0]) for _ in range(STEPS)]
    step = [min(each) for each in zip(*seconds)]
    return {"first": [first, our_first], "step": step, "difference": difference(found, wanted)}


def warm_up() -> None:
    """Run a small model both ways, so that no first step of another pays what a process pays."""
    import keras
    import numpy as np

    import keras_recompute as kr

    x = inputs = keras.Input((4,))
    for _ in range(3):
        x = keras.layers.Dense(4)(x)
    model = keras.Model(inputs, x)
    for each in (model, kr.checkpointed(model, every=1)):
        Steps(each, [np.ones((2, 4), "float32")])(jit=True)


def temporaries(record: Any) -> int:
    """Return the largest sum of temporaries over the compiled program."""
    from keras_recompute.liveness.program import held_per_step

    return max(held_per_step(record.buffers, ("temporary",), record.program_steps))


def holder(record: Any) -> dict[str, Any]:
    """Return the largest temporary that is alive where their sum is largest, and that sum."""
    from keras_recompute.liveness.program import held_per_step

    held = held_per_step(record.buffers, ("temporary",), record.program_steps)
    at = held.index(max(held))
    largest = next(b for b in record.live_at(at) if b.lifetime == "temporary")
    kind = (largest.op_name or largest.name).rpartition("/")[2]
    return {
        "bytes": largest.size_bytes,
        "of": held[at],
        "layer": largest.layer,
        "phase": largest.phase,
        "kind": kind,
    }


def difference(ours: list[Any], plain: list[Any]) -> float:
    """Return the largest difference, relative to the largest element of its tensor, or a thousandth
    of that of all.
    """
    import numpy as np

    floor = 1e-3 * max(float(np.abs(p).max(initial=0.0)) for p in plain)
    return max(
        float(np.abs(a - p).max(initial=0.0) / max(np.abs(p).max(initial=0.0), floor))
        for a, p in zip(ours, plain)
    )


def place(model: Any, name: str) -> dict[str, Any]:
    """Return where the checkpoints of a model of the table stand, as ``checkpointed`` is told."""
    return (
        {"layers": BLOCKS[name]}
        if name in BLOCKS
        else {"every": max(1, round(len(model.layers) ** 0.5))}
    )


def trained_steps(model: Any, inputs: list[Any]) -> Iterator[tuple[str, Any]]:
    """Compile ``model`` with each optimizer in turn; yield its name and the whole training step."""
    import keras
    import tensorflow as tf

    from keras_recompute.models.measures.trained_step import trained_step

    specs = [tf.TensorSpec(value.shape, value.dtype) for value in inputs]
    for optimizer in OPTIMIZERS:
        model.compile(optimizer)
        yield optimizer, trained_step(model, keras.tree.pack_sequence_as(model.input, specs))


def memory(name: str) -> dict[str, Any]:
    """Return what is read from the compiled training steps of one model, for its row."""
    import keras

    import keras_recompute as kr

    model, inputs = build(name)
    sample = keras.tree.pack_sequence_as(model.input, inputs)
    candidates = [model, kr.checkpointed(model, **place(model, name))]
    row: dict[str, Any] = {"temporaries": {}}
    for optimizer, step in trained_steps(model, inputs):
        if "peaks" not in row:  # the plans are looked for once
            try:
                planned, plans = planned_model(model, sample)
                row.update(plans)
                candidates.append(planned)
            except Exception as error:  # said in the table
                row["plan"] = f"{type(error).__name__}: {error}"
        records = [step.compiled(candidate) for candidate in candidates]
        row["temporaries"][optimizer] = [temporaries(record) for record in records]
        if "peaks" not in row:
            row["peaks"] = [record.peak_bytes for record in records]
            row["holders"] = [holder(record) for record in records]
    return row


def planned_model(model: Any, sample: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model of the leanest plan, and how its predictions and other budgets did."""
    import keras_recompute as kr
    from keras_recompute.planning import BudgetTooSmallError

    predicted = kr.plan(model, memory_budget="1024GiB", sample=sample, prove=False)[1]
    plain_bytes = kr.plan(model, memory_budget="1024GiB", sample=sample)[1].compiled_peak_bytes
    try:
        kr.plan(model, memory_budget=1, sample=sample)
    except BudgetTooSmallError as refusal:
        leanest_bytes = refusal.smallest_budget_bytes
    planned, plan = kr.plan(model, memory_budget=leanest_bytes, sample=sample)
    budgets = []
    for share in BUDGETS:
        try:
            found = kr.plan(model, memory_budget=int(share * plain_bytes), sample=sample)[1]
            budgets.append([found.compiled_peak_bytes / plain_bytes, None])
        except BudgetTooSmallError as refusal:
            budgets.append([None, refusal.smallest_budget_bytes / plain_bytes])
    ratio = predicted.predicted_peak_bytes / plain_bytes
    planned_ratio = plan.predicted_peak_bytes / plan.compiled_peak_bytes
    return planned, {"predicted": [ratio, planned_ratio], "budgets": budgets}


def plain_memory(name: str) -> dict[str, Any]:
    """Return the temporaries of the plain model's steps."""

    model, inputs = build(name)
    steps = trained_steps(model, inputs)
    return {"low_memory": {how: temporaries(step.compiled(model)) for how, step in steps}}


def times(name: str) -> dict[str, Any]:
    """Return of the row of one model what runs in float32: seconds, and how far apart the results
    are.
    """
    import keras_recompute as kr
    from keras_recompute.seams.keras.layers import layers_in

    model, inputs = build(name)
    layers = len(layers_in(model, include_self=False)) if name in HUB else len(model.layers)
    row: dict[str, Any] = {"layers": layers, "every": max(1, round(len(model.layers) ** 0.5))}
    warm_up()
    steps = Steps(model, inputs), Steps(kr.checkpointed(model, **place(model, name)), inputs)
    return {**row, "jit": beside(*steps, jit=True), "graph": beside(*steps, jit=False)}


def exactness(name: str) -> dict[str, Any]:
    """Return of the row of one model how far apart the results are in float64, and those of the
    plain model from float32's.
    """
    import keras

    import keras_recompute as kr

    model, inputs = build(name)
    weights, where = model.get_weights(), place(model, name)
    in_float32 = Steps(model, inputs)(jit=True)[1]
    row: dict[str, Any] = {}
    keras.config.set_dtype_policy("float64")
    keras.config.set_floatx("float64")
    model = build(name)[0]
    model.set_weights(weights)
    inputs = [value.astype(tensor.dtype) for tensor, value in zip(model.inputs, inputs)]
    # Both before the first step, which draws random numbers: they begin with the same state.
    plain, ours = Steps(model, inputs), Steps(kr.checkpointed(model, **where), inputs)
    wanted = plain(jit=False)[1]
    row["float64"] = difference(ours(jit=False)[1], wanted)
    if not any("seed_generator" in v.path for v in model.variables):
        row["rounding"] = difference(in_float32, wanted)
    return row


def measure(name: str) -> dict[str, Any]:
    """Return the row of one model."""
    return {**times(name), **memory(name), **exactness(name)}


def run_alone(name: str, part: str | None, **environment: str) -> dict[str, Any]:
    """Return what this program says of one model in a process of its own."""
    command = [sys.executable, __file__, "--one", name, *([f"--{part}"] if part else [])]
    env = {**os.environ, **environment}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    said = (done.stderr.strip().splitlines() or [""])[-1]
    return (
        json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": said[:300]}
    )


def main(argv: list[str] | None = None) -> int:
    """Measure models and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", default=[], help="a model to run; the other rows stay"
    )
    part = parser.add_mutually_exclusive_group()
    for name, what in {"memory": "compile", "times": "run in float32"}.items():
        part.add_argument(
            f"--{name}",
            dest="part",
            action="store_const",
            const=name,
            help=f"{what} alone; other figures stay",
        )
    part.add_argument(
        "--plain-memory",
        dest="part",
        action="store_const",
        const="plain-memory",
        help=argparse.SUPPRESS,
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        warnings.simplefilter("ignore")
        parts = {"memory": memory, "plain-memory": plain_memory, "times": times, None: measure}
        print(json.dumps(parts[options.part](options.one)))
        return 0
    rows = (
        json.loads(RESULTS.read_text())
        if (options.only or options.part) and RESULTS.exists()
        else {}
    )
    names = options.only or [*IMAGES, *HUB]
    for name in [n for n in names if "jit" in rows.get(n, {})] if options.part else names:
        found = run_alone(name, options.part)
        if options.part != "times" and "error" not in found:
            found.update(run_alone(name, "plain-memory", XLA_FLAGS=LOW_MEMORY))
        if options.part and "error" in found:
            print(f"{name}: {found['error']}", flush=True)
            continue
        rows[name] = {**rows.get(name, {}), **found} if options.part else found
        print(
            line(name, rows[name]) if "error" not in rows[name] else f"{name}: {found['error']}",
            flush=True,
        )
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    PAGE.write_text(page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
