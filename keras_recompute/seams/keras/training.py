"""Data handling and metrics of ``fit`` and ``evaluate``, and variables of optimisers. Importing this loads no Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def build_for_fit(model: Any, batch: tuple[Any, ...]) -> None:
    """Make every variable of a compiled ``model``, its metrics and its optimizer for a ``batch``, without running anything."""
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=batch)


def has_own_train_step(model: Any) -> bool:
    """Whether the class of ``model`` trains by a ``train_step`` of its own, this package's aside."""
    classes = (cls for cls in type(model).__mro__ if "train_step" in vars(cls))
    modules = (cls.__module__.split(".")[0] for cls in classes)
    return next((module for module in modules if module != "keras_recompute"), "") != "keras"


def record_loss(model: Any, loss: Any, samples: Any) -> None:
    """Note the ``loss`` of a batch of so many ``samples`` in the metric that Keras reports as the loss."""
    model._loss_tracker.update_state(loss, sample_weight=samples)


def optimizer_index(optimizer: Any, variable: Any) -> int:
    """Return the place of ``variable``, Keras's or TensorFlow's own, among those that a built ``optimizer`` updates."""
    index: int = optimizer._get_variable_index(variable)
    return index


def is_within_fit(arguments: Mapping[str, Any]) -> bool:
    """Whether ``evaluate`` was called with ``arguments`` by ``fit``, for the validation data that it holds."""
    return bool(arguments.get("_use_cached_eval_dataset"))


def split_for_validation(x: Any, share: float) -> tuple[Any, Any]:
    """Return what ``fit(x, validation_split=share)`` trains on, and what it evaluates."""
    (trained,), (validation,) = split_all_for_validation((x,), share)
    return trained, validation


def split_all_for_validation(parts: tuple[Any, ...], share: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what ``fit`` trains on of ``parts``, its data and what goes with it, and what it evaluates."""
    from keras.src.trainers.data_adapters.array_slicing import train_validation_split

    trained, validation = train_validation_split(parts, share)
    return tuple(trained), tuple(validation)
