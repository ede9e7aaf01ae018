"""The training steps of one model of the zoo on JAX: plain Keras, ``keras.RematScope`` and ours.

Each step is the one that ``fit`` compiles, with Adam and the mean square of all outputs. It is
compiled for this CPU, where it runs three times, and for devices that are not here. For these the
batch is 16 times as large: on a TPU small activations stay on the chip and need no memory.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from zoo_models import build
from zoo_steps import PLANNED, Batch, batch_of, half_plan, place, tried

import keras_recompute as kr
from keras_recompute.liveness import profile
from keras_recompute.liveness.device_compilers.limits import CompileLimits, compile_limits
from keras_recompute.liveness.jax_training_step import training_step, variables_trained

UPDATES = 3
CPU = "cpu"
SECONDS = 3600  # of one compilation for a device
TIMES = 16  # the batch of devices over that of the CPU


def measure(name: str, devices: list[str], *, is_planned: bool) -> dict[str, Any]:
    """Return the row of one model: what each way to train it takes, or why it fails."""
    plain, inputs = build(name)
    batch = batch_of(plain, inputs)
    plain.compile("adam", "mse")
    ways: dict[str, Callable[[], keras.Model]] = {
        "plain": lambda: plain,
        "remat": lambda: in_remat_scope(name),
        "every": lambda: kr.checkpointed(plain, **place(plain, name)),
    }
    large = jax.tree.map(repeated, batch)
    row = {}
    for way, make in ways.items():
        row[way] = tried(lambda make=make: figures(make(), batch, large, devices))
    if "error" not in row["remat"]:
        # RematScope recomputes each layer by itself, and so do these checkpoints.
        row["each"] = figures(kr.checkpointed(plain, every=1), batch, large, devices)
    if is_planned:
        row["leanest"] = tried(lambda: leanest_figures(plain, batch, large, row["plain"]))
    if is_planned and name in PLANNED and CPU in devices:
        row["half"] = tried(lambda: half_plan(plain, batch))
    return row


def in_remat_scope(name: str) -> keras.Model:
    """Return the model of that name, whose layers are all recomputed by Keras itself."""
    with keras.RematScope(mode="full"):
        return build(name)[0]


def figures(model: keras.Model, batch: Batch, large: Batch, devices: list[str]) -> dict[str, Any]:
    """Return temporaries of the steps that train ``model``; of the CPU losses and seconds too."""
    found: dict[str, Any] = {"temporaries": {}}
    if CPU in devices:
        found.update(trained(compiled(model), batch))
    for device in devices:
        if device != CPU:
            needed_bytes = tried(partial(temporary_bytes, model, large, device))
            found["temporaries"][device] = needed_bytes
    return found


def temporary_bytes(model: keras.Model, batch: Batch, device: str) -> int:
    """Return the temporaries of the step on a device, by its compiler."""
    with compile_limits(CompileLimits(SECONDS, None)):
        record = profile(compiled(model), *batch, device=device)
    return record.compiler_totals["stated_temp_bytes"]


def leanest_figures(
    plain: keras.Model, batch: Batch, large: Batch, of_plain: dict[str, Any]
) -> dict[str, Any]:
    """Return the same of the plans that take least memory here and on each device."""
    found: dict[str, Any] = {"temporaries": {}}
    if CPU in of_plain["temporaries"]:
        model = kr.plan(plain, memory_budget="smallest", sample=batch)[0]
        found = figures(model, batch, large, [CPU])
    for device, plain_bytes in of_plain["temporaries"].items():
        if device == CPU or not isinstance(plain_bytes, int):
            continue

        def needed_bytes(model: keras.Model, device: str = device, known: int = plain_bytes) -> int:
            """Return the temporaries; of a model without checkpoints those of the plain one."""
            is_plain = isinstance(model, kr.Model) and not model.plan.checkpoints
            return known if is_plain else temporary_bytes(model, large, device)

        options = {"sample": large, "needed_bytes": needed_bytes}
        plan = kr.plan(plain, memory_budget="smallest", **options)[1]
        found["temporaries"][device] = plan.compiled_peak_bytes
    return found


def compiled(model: keras.Model) -> keras.Model:
    """Return ``model``, compiled as all models of the zoo are."""
    model.compile("adam", "mse")
    return model


def repeated(part: Any) -> Any:
    """Return a part of the batch of devices, which takes no memory."""
    return np.broadcast_to(part[:1], (TIMES * part.shape[0], *part.shape[1:]))


def trained(model: keras.Model, batch: Batch) -> dict[str, Any]:
    """Return the losses of some steps, seconds of the first and of a later one, and temporaries.

    The first ones hold those to trace and compile. The variables of ``model`` stay as they are.
    """
    step = training_step(model, batch)
    variables = variables_trained(model, model.optimizer)
    # A step overwrites the state it is given.
    state = jax.tree.map(lambda variable: jnp.array(variable.value), variables)
    data = jax.tree.map(jnp.asarray, batch)
    start = time.perf_counter()
    compiled = step.function.lower(step.state, step.data).compile()
    losses, ends = [], [start]
    for _ in range(UPDATES):
        logs, state = compiled(state, data)
        losses.append(float(logs["loss"]))
        ends.append(time.perf_counter())
    first, *later = map(operator.sub, ends[1:], ends)
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    sizes = {"temporaries": {CPU: temporaries}}
    return {"losses": losses, "first": first, "step": min(later), **sizes}
