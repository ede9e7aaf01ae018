"""A program becomes a function of tensors, called with arguments of one sort or another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .environment import World
from .interpret import Machine
from .language import Program
from .scope import Frame, Value
from .wrappers import Wrap, policy_for


def build(program: Program, world: World, wrap: Wrap) -> Callable[..., Any]:
    """Return ``program`` as a function of two matrices and an integer, with checkpoints made by
    ``wrap``.
    """
    machine = Machine(world, wrap)

    @tf.autograph.experimental.do_not_convert
    def function(x: tf.Tensor, y: tf.Tensor, n: tf.Tensor, *others: tf.Tensor) -> Any:
        rows = tf.shape(x)[0] if x.shape.rank is None or x.shape[0] is None else x.shape[0]
        values = [*(Value(other, "row") for other in others), Value(y), Value(x)]
        frame = machine.run(program.body, Frame(tuple(values), n, rows))
        results = [value.tensor for value in frame.values[-program.returns :]]
        if program.nested:
            return {"results": results, "again": results[0], "integer": (n * 2, None)}
        return results[0] if len(results) == 1 else tuple(results)

    given, call = _calls(function, world)[program.arguments]
    if program.policy is not None:
        marked = (
            () if program.arguments == "tf.function" else program.body
        )  # names inside another function are not seen
        given = wrap(given, policy_for(program.policy, marked))
    return lambda x, y, n: call(given, x, y, n)


def _calls(
    function: Callable[..., Any], world: World
) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Return functions of different arguments that do what ``function`` does, and how each is
    called.
    """

    @tf.autograph.experimental.do_not_convert
    def of_nest(nest: Any, *, factor: float, times: int, nothing: None) -> Any:
        assert nothing is None
        return function(nest["x"] * factor, nest["rest"][0], nest["rest"][1] * times)

    @tf.autograph.experimental.do_not_convert
    def of_variables(weights: list[tf.Variable], x: tf.Tensor, y: tf.Tensor, n: tf.Tensor) -> Any:
        return function(x, y, n, *(tf.convert_to_tensor(weight) for weight in weights))

    @tf.autograph.experimental.do_not_convert
    def of_arrays(x: tf.Tensor, y: tf.Tensor, n: tf.Tensor, array: Any) -> Any:
        return function(x, y, n, tf.convert_to_tensor(array))

    def of_control_flow(x: tf.Tensor, y: tf.Tensor, n: tf.Tensor) -> Any:
        """For AutoGraph, which converts what is around it and this alone."""
        if n % 2 == 1:
            x = tf.sin(x)
        for _ in tf.range(n):
            y = tf.tanh(y)
        return function(x, y, n)

    row = world.variables["row"]
    return {
        "positional": (function, lambda run, x, y, n: run(x, y, n)),
        "tf.function": (tf.function(function, autograph=False), lambda run, x, y, n: run(x, y, n)),
        "control flow": (of_control_flow, lambda run, x, y, n: run(x, y, n)),
        "keywords": (function, lambda run, x, y, n: run(x, n=n, y=y)),
        "nest": (
            of_nest,
            lambda run, x, y, n: run(
                {"x": x, "rest": (y, n, None)}, factor=0.5, times=1, nothing=None
            ),
        ),
        "variables": (of_variables, lambda run, x, y, n: run([row, row], x, y, n)),
        "arrays": (of_arrays, lambda run, x, y, n: run(x, y, n, world.factor[0])),
    }
