"""One case: a program, how it is run and how it is differentiated; and what comes of it, plainly
and through the engine.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_recompute.errors import RecomputeWarning

from .build import build
from .environment import World, world_of
from .language import Program
from .op_table import WIDTH


@dataclass(frozen=True)
class Case:
    """A program in one of the ways to run TensorFlow.

    ``unknown`` dimensions of the arguments, in a graph: none, the rows, all, or even how many there
    are (rank). ``assigns`` says whether all variables change between the forward and the backward
    pass. ``calls`` says how often the one checkpointed function is called, with other arguments the
    second time. ``derivative`` is how gradients are asked for: of a tape, twice of a persistent
    one, as Jacobians, or by ``tf.gradients``. ``warm`` says whether it was called eagerly before,
    with other values of the variables.
    """

    program: Program
    mode: str = "eager"
    dtype: str = "float64"
    order: int = 1
    unknown: str = "none"
    assigns: bool = False
    calls: int = 1
    derivative: str = "tape"
    warm: bool = False
    n: int = 1

    def __str__(self) -> str:
        calls = f"called {self.calls} times, n = {self.n}, unknown dimensions: {self.unknown}"
        how = f"{self.mode}, {self.dtype}, derivatives of order {self.order} by {self.derivative}"
        calls += ", called eagerly before" if self.warm else ""
        calls += ", variables assigned between the passes" if self.assigns else ""
        return f"{how}, {calls}\n{self.program}"


@dataclass
class Outcome:
    """Values by name, where None is a gradient that is not there; or what was raised."""

    values: dict[str, np.ndarray | None]
    error: Exception | None = None


def run(case: Case, wrap: Callable[..., Any]) -> Outcome:
    """Run ``case`` from the beginning of the world."""
    world = world_of(case.dtype)
    world.reset()
    with warnings.catch_warnings():
        # Most of these checkpoints save nothing, or name what is not read, as they should say.
        warnings.simplefilter("ignore", RecomputeWarning)
        warnings.filterwarnings(
            "ignore", "Converting sparse IndexedSlices"
        )  # TensorFlow's, of programs with unknown shapes
        try:
            arguments = (*world.arguments, tf.constant(case.n))
            step = _step(case, world, wrap, arguments)
            found = step(*arguments)
            values = {name: None if t is None else t.numpy() for name, t in found.items()}
        except Exception as error:
            return Outcome({}, error.with_traceback(None))
    return Outcome({**values, **world.state()})


def _step(
    case: Case, world: World, wrap: Callable[..., Any], arguments: Sequence[tf.Tensor]
) -> Any:
    """Return a function from arguments to everything that is compared, by name."""
    function = build(case.program, world, wrap)
    if case.warm:
        function(*arguments)
        world.change()
    variables = world.variables

    def step(x: tf.Tensor, y: tf.Tensor, n: tf.Tensor) -> dict[str, tf.Tensor | None]:
        sources = {"x": x, "y": y, **variables}
        # The outer one only where it is needed: a tape may change what the one inside it finds.
        with tf.GradientTape() if case.order == 2 else contextlib.nullcontext() as outer:
            if outer:
                outer.watch([x, y])
            with tf.GradientTape(persistent=case.derivative in ("persistent", "jacobian")) as tape:
                tape.watch([x, y])
                world.outside = tf.sin(x - y)
                outputs = tf.nest.flatten(function(x, y, n))
                if case.calls == 2:
                    outputs += tf.nest.flatten(function(tf.sin(y), x, n + 1))
                world.outside = None
                loss = weighted_sum(outputs)
            if case.assigns:
                with outer.stop_recording() if outer else contextlib.nullcontext():
                    world.change()
            found = _gradients(case, tape, loss, outputs, sources)
            total = weighted_sum(list(found.values())) if outer else None
        if total is not None:
            found.update(_named("dd", sources, outer.gradient(total, list(sources.values()))))
        return {
            **{f"output {number}": y for number, y in enumerate(outputs) if y is not None},
            **found,
        }

    if case.mode == "eager":
        return step
    shape = {
        "none": world.arguments[0].shape,
        "rows": (None, WIDTH),
        "all": (None, None),
        "rank": None,
    }[case.unknown]
    matrix = tf.TensorSpec(shape, world.dtype)
    signature = [matrix, matrix, tf.TensorSpec((), tf.int32)]
    has_control_flow = case.program.arguments == "control flow"
    return tf.function(
        step, autograph=has_control_flow, jit_compile=case.mode == "jit", input_signature=signature
    )


def _gradients(
    case: Case,
    tape: tf.GradientTape,
    loss: tf.Tensor,
    outputs: Sequence[Any],
    sources: dict[str, Any],
) -> dict[str, tf.Tensor | None]:
    """Return the first derivatives by ``sources``, asked for as ``case`` says."""
    asked = list(sources.values())
    if case.derivative == "tf.gradients":
        return _named("d", sources, tf.gradients(loss, asked))
    if case.derivative == "jacobian":
        first = next(y for y in outputs if y is not None and y.dtype.is_floating)
        return _named("jacobian", sources, tape.jacobian(first, asked))
    found = _named("d", sources, tape.gradient(loss, asked))
    return (
        {**found, **_named("d again", sources, tape.gradient(loss, asked))}
        if case.derivative == "persistent"
        else found
    )


def _named(
    of: str, sources: dict[str, Any], gradients: Sequence[Any]
) -> dict[str, tf.Tensor | None]:
    return {
        f"{of} {name}": None if g is None else tf.convert_to_tensor(g)
        for name, g in zip(sources, gradients)
    }


def weighted_sum(tensors: Sequence[tf.Tensor | None]) -> tf.Tensor | None:
    """Return a sum of all elements that tells them apart; None of nothing that has a derivative."""
    terms = []
    for number, t in enumerate(tensors):  # counting also what is not there, which may differ
        if t is not None and t.dtype.is_floating:
            places = tf.cast(tf.reshape(tf.range(tf.size(t)), tf.shape(t)), t.dtype)
            terms.append(tf.reduce_sum(t * tf.cos(places * (number + 1.0))))
    return tf.add_n(terms) if terms else None
