"""Keras 2 usages that work in Keras 3 while Graphcore's names are installed.

One function implements each usage of ``configuration.keras2_compat``. Each only changes calls that
Keras 3 refuses, so programs that work without them are unaffected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...seams.keras.patched_methods import patch_constructor, patch_method
from .weight_files import accept_any_weight_file_name

_TIME_MAJOR = "keras2_time_major"


def accept_integer_shapes() -> AbstractContextManager[None]:
    """Accept ``Input(80)``, by adapting the class of input layers."""

    def adapted(_: Any, *args: Any, **kwargs: Any) -> Any:
        shape, *others = args or (kwargs.pop("shape", None),)
        if isinstance(shape, (int, np.integer)):
            shape = (int(shape),)
        return ((shape, *others), kwargs) if args else ((), {**kwargs, "shape": shape})

    return patch_constructor(keras.layers.InputLayer, adapted)


def accept_self_argument() -> AbstractContextManager[None]:
    """Accept ``super().__init__(self)`` in a model's class."""

    def adapted(made: Any, *args: Any, **kwargs: Any) -> Any:
        return tuple(each for each in args if each is not made), kwargs

    return patch_constructor(keras.Model, adapted)


@contextmanager
def accept_time_major() -> Iterator[None]:
    """Accept ``LSTM(..., time_major=True)``: transpose the inputs and returned sequences."""

    def adapted(made: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("time_major", False):
            # Before Keras's own attributes are there.
            object.__setattr__(made, _TIME_MAJOR, True)
        return args, kwargs

    def is_turned(layer: Any) -> bool:
        return getattr(layer, _TIME_MAJOR, False)

    def turned(results: Any, layer: Any, turn: Callable[[Any], Any]) -> Any:
        if not layer.return_sequences:
            return results
        return (
            type(results)([turn(results[0]), *results[1:]]) if layer.return_state else turn(results)
        )

    def call(
        plain: Callable[..., Any], layer: Any, sequences: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not is_turned(layer):
            return plain(layer, sequences, *args, **kwargs)
        results = plain(layer, keras.ops.swapaxes(sequences, 0, 1), *args, **kwargs)
        return turned(results, layer, lambda outputs: keras.ops.swapaxes(outputs, 0, 1))

    def build(
        plain: Callable[..., Any], layer: Any, sequences_shape: Any, *args: Any, **kwargs: Any
    ) -> None:
        plain(
            layer,
            batch_first(sequences_shape) if is_turned(layer) else sequences_shape,
            *args,
            **kwargs,
        )

    def output_shape(
        plain: Callable[..., Any], layer: Any, sequences_shape: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not is_turned(layer):
            return plain(layer, sequences_shape, *args, **kwargs)
        return turned(
            plain(layer, batch_first(sequences_shape), *args, **kwargs), layer, batch_first
        )

    def config(plain: Callable[..., Any], layer: Any) -> Any:
        return {**plain(layer), **({"time_major": True} if is_turned(layer) else {})}

    def batch_first(shape: Any) -> tuple[Any, ...]:
        return (shape[1], shape[0], *shape[2:])

    methods: dict[str, Callable[..., Any]] = {
        "call": call,
        "build": build,
        "compute_output_shape": output_shape,
        "get_config": config,
    }
    with ExitStack() as stack:
        stack.enter_context(patch_constructor(keras.layers.RNN, adapted))
        for name, through in methods.items():
            stack.enter_context(patch_method(keras.layers.RNN, name, through))
        yield


def accept_inputs_keyword() -> AbstractContextManager[None]:
    """Accept ``LSTM(4)(inputs=x)``; Keras 3 calls the argument ``sequences``."""

    def call(plain: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not args and "inputs" in kwargs and "sequences" not in kwargs:
            args = (kwargs.pop("inputs"),)
        return plain(layer, *args, **kwargs)

    return patch_method(keras.layers.RNN, "__call__", call)


@contextmanager
def accept_old_learning_rates() -> Iterator[None]:
    """Accept ``lr``, ``decay``, and learning rates of any numeric type."""

    def adapted(_: Any, *args: Any, **kwargs: Any) -> Any:
        rate, *others = args or (kwargs.pop("learning_rate", None),)
        rate, decay = kwargs.pop("lr", rate), float(kwargs.pop("decay", 0.0))
        if isinstance(rate, (int, np.generic, np.ndarray, tf.Tensor)):
            rate = float(rate)
        if decay and not isinstance(rate, float):
            raise ValueError(
                f"decay={decay} cannot be combined with the learning rate {rate!r}: leave decay "
                "out, or give a number"
            )
        if decay:
            rate = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
        return ((rate, *others), kwargs) if args else ((), {**kwargs, "learning_rate": rate})

    def set_rate(optimizer: Any, rate: Any) -> None:
        optimizer.learning_rate = rate

    optimizers: Any = keras.optimizers.Optimizer
    optimizers.lr = property(lambda optimizer: optimizer.learning_rate, set_rate)
    try:
        with patch_constructor(keras.optimizers.Optimizer, adapted):
            yield
    finally:
        del optimizers.lr


@contextmanager
def apply_floatx_to_layers() -> Iterator[None]:
    """Make ``set_floatx`` set the type of later layers, under each of its names.

    Keras 3 fixes the type of layers when the first layer is constructed.
    """
    plain = keras.config.set_floatx

    def set_floatx(value: str) -> None:
        is_by_floatx = keras.config.dtype_policy().name == keras.config.floatx()
        plain(value)
        if is_by_floatx:
            keras.config.set_dtype_policy(value)

    # The same function has a place in four modules.
    modules: list[Any] = [keras.config, keras.backend, tf.keras.config, tf.keras.backend]
    for module in modules:
        module.set_floatx = set_floatx
    try:
        yield
    finally:
        for module in modules:
            module.set_floatx = plain


def accept_trailing_unit_axis() -> AbstractContextManager[None]:
    """Accept predictions with a trailing axis of size 1 for integer class targets.

    Keras 2 squeezes that axis.
    """

    def call(plain: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any) -> Any:
        # Columns are targets too.
        of_targets = len(y_true.shape) - (len(y_true.shape) == 2 and y_true.shape[-1] == 1)
        if of_targets == 1 and len(y_pred.shape) == 3 and y_pred.shape[-1] == 1:
            y_pred = keras.ops.squeeze(y_pred, axis=-1)
        return plain(loss, y_true, y_pred)

    return patch_method(keras.losses.SparseCategoricalCrossentropy, "call", call)


ADAPTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "Input(80)": accept_integer_shapes,
    "super().__init__(self)": accept_self_argument,
    "LSTM(..., time_major=True)": accept_time_major,
    "LSTM(4)(inputs=x)": accept_inputs_keyword,
    "SGD(lr=0.1, decay=1e-3)": accept_old_learning_rates,
    "SGD(learning_rate=np.float32(0.1))": accept_old_learning_rates,
    'set_floatx("float16")': apply_floatx_to_layers,
    'save_weights("weights.hd5")': accept_any_weight_file_name,
    "SparseCategoricalCrossentropy()(y, p[..., None])": accept_trailing_unit_axis,
}


@contextmanager
def adapt_keras() -> Iterator[None]:
    """Adapt Keras until the context ends."""
    with ExitStack() as stack:
        for adaptation in dict.fromkeys(ADAPTATIONS.values()):
            stack.enter_context(adaptation())
        yield
