"""Measures what a training step of a model takes on this machine, with and without jit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...liveness.local_device import preserving_values, zeros_for_specs
from .trained_step import loss_of_squares

_RUNS = 3


def step_seconds(model: keras.Model, specs: Sequence[tf.TensorSpec], *, jit: bool) -> float:
    """Return the time of passes forward and backward of ``model`` on inputs like ``specs``.

    ``specs`` are flat, and the time is that of ``least_seconds``. What the passes change, such as
    statistics and the state of random generators, is restored.
    """
    with preserving_values(model.non_trainable_variables):
        return least_seconds(
            tf.function(_training_pass(model), jit_compile=jit, autograph=False), specs
        )


def seconds_with_jit_and_without(
    model: keras.Model, specs: Sequence[tf.TensorSpec]
) -> tuple[float | None, float]:
    """Return ``step_seconds`` with jit, None where XLA lacks an operation, and without."""
    try:
        jit = step_seconds(model, specs, jit=True)
    except tf.errors.InvalidArgumentError:  # which the proof of a plan names
        jit = None
    return jit, step_seconds(model, specs, jit=False)


def _training_pass(model: keras.Model) -> Callable[..., Any]:
    """Return a function of flat inputs to a loss of ``model`` and the gradients of all weights."""
    variables = [v.value for v in model.trainable_variables]

    def run(*inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            outputs = model(keras.tree.pack_sequence_as(model.input, inputs), training=True)
            loss = loss_of_squares(model, outputs)
        return loss, tape.gradient(loss, variables)

    return run


def least_seconds(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> float:
    """Return the shortest of three runs of a ``tf.function`` on zeros like ``specs``.

    One run before them traces it.
    """
    inputs = zeros_for_specs(list(specs))
    seconds = []
    for _ in range(1 + _RUNS):
        begin = time.perf_counter()
        for result in tf.nest.flatten(function(*inputs)):
            if result is not None:
                tf.convert_to_tensor(result).numpy()
        seconds.append(time.perf_counter() - begin)
    return min(seconds[1:])
