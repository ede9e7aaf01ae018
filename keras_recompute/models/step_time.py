"""What a training step of a model takes on this machine, with and without jit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import keras
import numpy as np
import tensorflow as tf

from .proof import training_pass

_STEPS = 3


def step_seconds(model: keras.Model, specs: Sequence[tf.TensorSpec], *, jit: bool) -> float:
    """Return the least seconds of three passes forward and backward on zeros like ``specs``, flat, which ``model`` takes.

    What the passes change, such as statistics and the state of random generators, is as before afterwards.
    """
    function = tf.function(training_pass(model), jit_compile=jit, autograph=False)
    inputs = [tf.zeros(spec.shape, spec.dtype) for spec in specs]
    taken = []
    with unchanged(model.non_trainable_variables):
        for _ in range(1 + _STEPS):  # the first traces, and compiles
            begin = time.perf_counter()
            for result in tf.nest.flatten(function(*inputs)):
                if result is not None:
                    tf.convert_to_tensor(result).numpy()
            taken.append(time.perf_counter() - begin)
    return min(taken[1:])


@contextmanager
def unchanged(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """Give ``variables`` the values again that they had before: layers that run as in training change statistics and seeds."""
    # Copies: what TensorFlow returns may be the memory of the variable itself.
    before = [(variable, np.array(variable.numpy())) for variable in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)
