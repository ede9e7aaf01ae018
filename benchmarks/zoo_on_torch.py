"""The training steps of one model of the zoo on PyTorch: plain, by Keras, by hand, and ours.

Each step is the one that ``fit`` runs without jit, with the mean square of all outputs as the loss.
Saved is what is alive between the forward and the backward pass, weights apart, and peaks are those
of temporaries, both on fake tensors. Seconds are medians of steps that take turns. By hand means
PyTorch's ``checkpoint_sequential``, where the model is a chain of parts with one tensor between.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import torch
from torch.utils.checkpoint import checkpoint_sequential
from zoo_models import BLOCKS, HUB, build
from zoo_steps import Batch, batch_of, place, tried

import keras_recompute as kr
from keras_recompute.liveness import Program, profile
from keras_recompute.liveness.program import TEMPORARY, held_per_step
from keras_recompute.models.plans.checkpointed import graph_of
from keras_recompute.op_names import BACKWARD

UPDATES = 3
STEPS = 9
ENOUGH_SECONDS = 25
TIMES = 4  # the batch of KerasHub's models over that of the record, for seconds
OPTIMIZERS = ("sgd", "adam")


class ByHand(keras.Model):
    """A chain of models that ``checkpoint_sequential`` runs in ``segments`` parts."""

    def __init__(self, parts: Sequence[keras.Model], segments: int) -> None:
        super().__init__()
        self.parts, self.segments = list(parts), segments

    def call(self, x: Any, training: bool | None = None) -> Any:
        functions = [lambda x, part=part: part(x, training=training) for part in self.parts]
        return checkpoint_sequential(functions, self.segments, x, use_reentrant=False)


class Way(NamedTuple):
    """A model, and its variables in the order of the plain model's."""

    model: keras.Model
    variables: list[keras.Variable]


def measure(name: str, devices: list[str], *, is_planned: bool) -> dict[str, Any]:  # noqa: ARG001
    """Return the row of one model: what each way to train it takes, or why it fails."""
    plain, inputs = build(name)
    batch = batch_of(plain, inputs)
    every = kr.checkpointed(plain, **place(plain, name))
    segments = 1 if name in BLOCKS else 1 + len(every.plan.checkpoints)
    ways: dict[str, Callable[[], Way]] = {
        "plain": lambda: Way(plain, plain.variables),
        "remat": lambda: in_remat_scope(name),
        "hand": lambda: by_hand(name, segments),
        "every": lambda: Way(every, plain.variables),
    }
    row: dict[str, Any] = {}
    running: dict[str, Way] = {}
    wanted: list[Any] = []
    for how, make in ways.items():
        found = tried(make)
        if isinstance(found, Way):
            running[how] = found
            optimizers = OPTIMIZERS if how in ("plain", "every") else OPTIMIZERS[:1]
            found = tried(partial(figures, found, batch, wanted, optimizers))
        row[how] = found
    working = {how: way.model for how, way in running.items() if "error" not in row[how]}
    # KerasHub's models are so small that most of a step would be Python.
    times = TIMES if name in HUB else 1
    large = keras.tree.map_structure(lambda part: np.repeat(part, times, axis=0), batch)
    for how, seconds in seconds_of(working, large).items():
        row[how]["seconds"] = seconds
    row["plain"]["forward"] = forward_seconds(plain, large[0])
    return row


def in_remat_scope(name: str) -> Way:
    """Return the model of that name, whose layers are all recomputed by Keras itself."""
    with keras.RematScope(mode="full"):
        model = build(name)[0]
    return Way(model, model.variables)


def by_hand(name: str, segments: int) -> Way:
    """Return the model of that name as a chain of its parts; raises ValueError if it is none."""
    whole = build(name)[0]
    graph = graph_of(whole)
    read_last = {key: n for n, call in enumerate(graph.calls) for key in call.inputs}
    read_last.update(dict.fromkeys(graph.outputs, len(graph.calls)))
    begin, parts, alive = whole.input, [], set(graph.inputs)
    for number, call in enumerate(graph.calls):
        alive = {key for key in alive.union(call.outputs) if read_last.get(key, -1) > number}
        if alive == set(call.outputs) and len(alive) == 1:
            end = call.operation.output
            parts.append(keras.Model(begin, end))
            begin = end
    if segments == 1 or len(parts) < 2 * segments:
        raise ValueError("not a chain")
    return Way(ByHand(parts, segments), whole.variables)


def figures(way: Way, batch: Batch, wanted: list[Any], optimizers: Sequence[str]) -> dict[str, Any]:
    """Return what is held with each optimizer, and how far three updates are from ``wanted``.

    The first way adds its own to that. The variables get back the values that they have.
    """
    model, variables = way
    before = [np.array(variable) for variable in variables]
    keras.utils.set_random_seed(0)  # of dropout
    model.compile("sgd", "mse", jit_compile=False)
    losses = [loss_of(model, batch) for _ in range(UPDATES)]
    found = [np.array(losses), *map(np.array, variables)]
    for variable, value in zip(variables, before):
        variable.assign(value)
    if not wanted:
        wanted += found
    differences = [float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True)]
    held = {}
    for optimizer in optimizers:
        model.compile(optimizer, "mse", jit_compile=False)
        held[optimizer] = held_bytes(profile(model, *batch))
    return {"differences": [differences[0], max(differences)], **held}


def forward_seconds(model: keras.Model, x: Any) -> float:
    """Return the median seconds of a forward pass of ``model`` in training."""
    x = keras.tree.map_structure(torch.as_tensor, x)
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        model(x, training=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def loss_of(model: keras.Model, batch: Batch) -> float:
    """Train ``model`` once; return the mean of its losses."""
    return float(model.train_on_batch(*batch, return_dict=True)["loss"])


def held_bytes(record: Program) -> dict[str, int]:
    """Return the temporaries of a record: at the end of the forward pass, and at their peak."""
    phases = [step.phase for step in record.steps]
    held = held_per_step(record.buffers, (TEMPORARY,), record.program_steps)
    return {"saved": held[phases.index(BACKWARD) - 1], "peak": max(held)}


def seconds_of(models: dict[str, keras.Model], batch: Batch) -> dict[str, float]:
    """Return the median seconds of a step of each model; they take turns."""
    torch.set_num_threads(1)  # others at work disturb two threads more than one
    seconds: dict[str, list[float]] = {how: [] for how in models}
    for model in models.values():
        model.compile("sgd", "mse", jit_compile=False)
        loss_of(model, batch)
    begin = time.perf_counter()
    while len(seconds["plain"]) < STEPS and time.perf_counter() - begin < ENOUGH_SECONDS:
        for how, model in models.items():
            start = time.perf_counter()
            loss_of(model, batch)
            seconds[how].append(time.perf_counter() - start)
    return {how: statistics.median(each) for how, each in seconds.items()}
