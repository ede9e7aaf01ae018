"""What a program of the table is, and the pieces that several of them share.

A program takes ``wrap``, ``PLAIN`` or ``RECOMPUTED``, and the size of the batch. It wraps what its
author would wrap, and returns everything that ``fit`` needs, not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

import keras_recompute as kr

PLAIN = SimpleNamespace(model=lambda model, **_: model, function=lambda function: function)
RECOMPUTED = SimpleNamespace(model=kr.checkpointed, function=kr.checkpoint)
REGISTERED = keras.saving.register_keras_serializable(package="tests.strangers")
PROGRAMS: dict[str, Program] = {}


@dataclass
class Ready:
    """A model with its batch as ``fit`` takes them, and the network in it that people save."""

    model: keras.Model
    x: Any
    y: Any = None
    loss: Any = None
    network: keras.Model | None = None  # none where plain Keras cannot save either
    network_input: Any = None


@dataclass(frozen=True)
class Program:
    make: Callable[[Any, int], Ready]
    batch: int  # of the step whose memory is compared
    quick: bool
    tolerance: float  # of losses and weights without jit
    saves_memory: bool


def program(*, batch=2048, quick=False, tolerance=1e-6, saves_memory=True):
    def add(make):
        PROGRAMS[make.__name__] = Program(make, batch, quick, tolerance, saves_memory)
        return make

    return add


def adam():
    """Return an optimizer under which what is wrong with a gradient shows in the weights."""
    # Without epsilon a gradient of nothing but rounding moves its weight by a whole step. Without
    # decay a gradient of zeros in the place of none moves nothing.
    return keras.optimizers.Adam(0.01, epsilon=1e-3, weight_decay=0.1)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(high, *shape, low=0, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int32)


def stack(inputs, depth=6, width=16, outputs=None, activation="gelu"):
    """Return a model of a chain of dense layers."""
    first = x = keras.Input((inputs,))
    for _ in range(depth):
        x = keras.layers.Dense(width, activation)(x)
    return keras.Model(first, keras.layers.Dense(outputs or inputs)(x))
