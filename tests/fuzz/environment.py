"""What programs read and change beside their arguments: variables, a generator of random numbers,
shared functions.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from .op_table import ROWS, WIDTH, WORDS, numbers


class World:
    """The variables of all programs of one floating type.

    Made once, because to make variables takes long.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = tf.as_dtype(dtype)
        shapes = {
            "matrix": (WIDTH, WIDTH),
            "row": (WIDTH,),
            "scalar": (),
            "table": (WORDS, WIDTH),
            "untrained": (),
        }
        self._first = {
            name: numbers(*shape, seed=n).astype(dtype)
            for n, (name, shape) in enumerate(shapes.items())
        }
        self.variables = {
            name: tf.Variable(value, name=name, trainable=name != "untrained")
            for name, value in self._first.items()
        }
        self.counter = tf.Variable(0, name="counter")
        self.generator = tf.random.Generator.from_seed(1)
        self.factor = numbers(WIDTH, WIDTH, seed=10).astype(dtype)
        self.arguments = tuple(
            tf.constant(numbers(ROWS, WIDTH, seed=seed).astype(dtype)) for seed in (11, 12)
        )
        words = tf.lookup.KeyValueTensorInitializer(
            tf.range(3), tf.constant([0.5, -0.5, 0.7], self.dtype)
        )
        self.lookup = tf.lookup.StaticHashTable(words, tf.constant(0.2, self.dtype))
        self.shared: dict[Any, Any] = {}
        self.outside: tf.Tensor | None = None

    def reset(self) -> None:
        """Put everything back to where each run of a program begins."""
        for name, value in self._first.items():
            self.variables[name].assign(value)
        self.counter.assign(0)
        self.generator.reset_from_seed(1)
        self.outside = None

    def change(self) -> None:
        """Give every variable another value, as an optimiser does between a forward pass and
        another.
        """
        for name, value in self._first.items():
            self.variables[name].assign(tf.constant(0.3 - 0.5 * value))

    def state(self) -> dict[str, np.ndarray]:
        """Return what a program may have changed."""
        found = {f"{name} afterwards": v.numpy() for name, v in self.variables.items()}
        return {
            **found,
            "counter afterwards": self.counter.numpy(),
            "generator afterwards": self.generator.state.numpy(),
        }


@functools.lru_cache(maxsize=None)
def world_of(dtype: str) -> World:
    """Return the one world of a floating type."""
    return World(dtype)
