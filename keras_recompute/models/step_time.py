"""What a training step of a model takes on this machine, with and without jit, and a function of tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..liveness.local import unchanged, with_zeros
from .proof import training_pass

_RUNS = 3


def step_seconds(model: keras.Model, specs: Sequence[tf.TensorSpec], *, jit: bool) -> float:
    """Return the ``least_seconds`` of passes forward and backward on inputs like ``specs``, flat, which ``model`` takes.

    What the passes change, such as statistics and the state of random generators, is as before afterwards.
    """
    with unchanged(model.non_trainable_variables):
        return least_seconds(tf.function(training_pass(model), jit_compile=jit, autograph=False), specs)


def least_seconds(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> float:
    """Return the shortest of three runs of a ``tf.function`` on zeros like ``specs``, after one that traces it."""
    inputs = with_zeros(list(specs))
    taken = []
    for _ in range(1 + _RUNS):
        begin = time.perf_counter()
        for result in tf.nest.flatten(function(*inputs)):
            if result is not None:
                tf.convert_to_tensor(result).numpy()
        taken.append(time.perf_counter() - begin)
    return min(taken[1:])
