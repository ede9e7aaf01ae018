"""``tensorflow.python.ipu.ipu_strategy``: the scope in which Keras models become IPU models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from .entered import entering
from .extension import Extension
from .pipeline import extended
from .profiling import run as profiled


class IPUStrategy:
    """Models made inside ``scope()`` gain Graphcore's methods; models made outside lack them."""

    def __init__(self, ipu_device: str = "/device:IPU:0") -> None:
        self.ipu_device = ipu_device

    @contextmanager
    def scope(self) -> Iterator[IPUStrategy]:
        """Enter the strategy."""
        plain_new = keras.Model.__new__

        def new(cls: type, *args: Any, **kwargs: Any) -> Any:
            made = plain_new(cls, *args, **kwargs)
            if isinstance(made, Extension) or cls.__module__.startswith("keras.src.models.functional"):
                return made  # one of ours, or one that Keras makes for its own use
            if cls is keras.Model and type(made) is cls:
                return made  # neither functional nor a class of the user's: there is nothing to run
            is_functional = any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten((args, kwargs)))
            return plain_new(extended(cls, is_functional=is_functional), *args, **kwargs)

        keras.Model.__new__ = new
        try:
            with entering(self):
                yield self
        finally:
            keras.Model.__new__ = plain_new

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Call the ``tf.function`` ``fn``, or any function inside one. Raises ValueError for a plain function run eagerly."""
        if tf.executing_eagerly() and not isinstance(fn, tf.types.experimental.PolymorphicFunction):
            raise ValueError("IPUStrategy.run was given a plain function in eager mode: decorate it with tf.function")
        if tf.executing_eagerly() and getattr(fn, "_jit_compile", None):
            return profiled(fn, *args, keywords=kwargs)
        return fn(*args, **(kwargs or {}))


IPUStrategyV1 = IPUStrategy
