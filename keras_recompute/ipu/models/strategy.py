"""``tensorflow.python.ipu.ipu_strategy``: the scope in which Keras models become IPU models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from ...seams.keras.construction import construct_models_with
from ...seams.keras.graph import Functional
from ..configuration import config
from ..configuration.current_strategy import enter_strategy
from ..queues.host import run_with_queues
from .ipu_model_mixin import IpuModelMixin
from .pipelined import ipu_class_of


class IPUStrategy:
    """A strategy that gives Graphcore's methods to models made inside its ``scope()``.

    With ``enable_keras_extensions=False`` they do not get them. ``cpu_device`` and
    ``enable_dataset_iterators`` have no effect: there is one host, and its iterators are always
    usable.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        del cpu_device, enable_dataset_iterators
        self.ipu_device, self._extends = ipu_device, enable_keras_extensions
        self._has_warned = False

    @contextmanager
    def scope(self) -> Iterator[IPUStrategy]:
        """Enter the strategy."""

        def make(plain_new: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> Any:
            # Keras decides by the arguments whether the model is functional, so its own
            # constructor runs first.
            made = plain_new(cls, *args, **kwargs)
            if isinstance(made, IpuModelMixin):
                return made
            if cls is keras.Model and type(made) is cls:
                # Neither functional nor subclassed: it has no layers to run.
                return made
            # Keras constructs its applications and the models that it loads by Functional, without
            # arguments here.
            is_functional = issubclass(cls, Functional) or any(
                isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten((args, kwargs))
            )
            return plain_new(ipu_class_of(cls, is_functional=is_functional), *args, **kwargs)

        with construct_models_with(make) if self._extends else nullcontext(), enter_strategy(self):
            yield self

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the ``tf.function`` ``fn``, or any function inside a ``tf.function``.

        TensorFlow itself runs a function that uses queues or a dataset's iterator; others run as
        they are decorated. Raises ValueError for a plain function run eagerly, TypeError for
        double-precision arguments or results.
        """
        kwargs = kwargs or {}
        _require_single_precision((args, kwargs), "an argument")
        self._warn_of_one_replica()
        if not tf.executing_eagerly():
            results = fn(*args, **kwargs)
        elif isinstance(fn, tf.types.experimental.PolymorphicFunction):
            results = run_with_queues(fn, args, kwargs)
        else:
            raise ValueError(
                "IPUStrategy.run was given a plain function in eager mode: decorate it with "
                "tf.function"
            )
        _require_single_precision(results, "a result")
        return results

    def _warn_of_one_replica(self) -> None:
        """Warn once if an IPU would run the function in several replicas."""
        ipus = max(config.devices())
        if ipus > 1 and not self._has_warned:
            self._has_warned = True
            logging.getLogger(__name__).warning(
                "%d IPUs are configured, but IPUStrategy.run has one replica, so the function "
                "runs once. fit, evaluate and predict of a Keras model have several replicas",
                ipus,
            )


def _require_single_precision(nest: Any, what: str) -> None:
    """Raise TypeError if a leaf of ``nest`` is float64."""
    for leaf in tf.nest.flatten(nest):
        if getattr(leaf, "dtype", None) == tf.float64:
            raise TypeError(
                f"{what} of the function for IPUStrategy.run is float64, which an IPU does not "
                "have: cast it to float32"
            )


IPUStrategyV1 = IPUStrategy
