"""Private parts of Keras's trainer: building, batches, loss metric, and optimizer indices.

Importing this module does not load Keras.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def build_for_fit(model: Any, batch: tuple[Any, ...]) -> None:
    """Create all variables of a compiled ``model`` for a ``batch`` without running a step."""
    # Keras distributes its models itself on JAX and PyTorch.
    strategy = getattr(model, "distribute_strategy", None)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model._symbolic_build(data_batch=batch)


def first_batch_of_fit(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    validation_split: float = 0.0,
    **options: Any,
) -> tuple[Any, ...]:
    """Return the first batch on which ``fit`` would train, as it passes it on; () without data.

    ``options`` are those of its arguments that make batches: ``batch_size``, ``class_weight`` and
    ``steps_per_epoch``. Of a generator that batch is drawn.
    """
    from keras.src.trainers.epoch_iterator import EpochIterator

    if validation_split:
        given = x, y, sample_weight
        (x, y, sample_weight), _ = split_all_for_validation(given, validation_split)
    for _, _, (batch,) in EpochIterator(x, y, sample_weight, **options):
        # Of inputs alone it is no tuple.
        return batch if isinstance(batch, tuple) else (batch,)
    return ()


class JitChooser:
    """Mixin before a model's class: ``compile`` without ``jit_compile`` asks ``chooses_jit``."""

    _jit_compile: bool | None

    def chooses_jit(self, losses_and_metrics: Any) -> bool:
        """Return True for jit where Keras would not take it, but can.

        ``losses_and_metrics`` is a nest of what ``compile`` was given.
        """
        raise NotImplementedError

    @property
    def jit_compile(self) -> bool:
        """Whether the model is compiled with jit: Keras's own choice before ``compile``."""
        # Keras reads the old value where ``compile`` sets a new one. That must not ask.
        if self._jit_compile is None:
            self._jit_compile = super()._resolve_auto_jit_compile()  # type: ignore[misc]
        return bool(self._jit_compile)

    @jit_compile.setter
    def jit_compile(self, value: bool) -> None:
        super(JitChooser, type(self)).jit_compile.fset(self, value)  # type: ignore[misc]

    def _resolve_auto_jit_compile(self) -> bool:
        from keras.src.trainers.trainer import model_supports_jit

        if super()._resolve_auto_jit_compile():  # type: ignore[misc]
            return True
        metrics: Any = self._compile_metrics  # type: ignore[attr-defined]
        given = [
            getattr(self, "loss", None),
            metrics and [metrics._user_metrics, metrics._user_weighted_metrics],
        ]
        return model_supports_jit(self) and self.chooses_jit(given)


def has_own_train_step(model: Any) -> bool:
    """Whether the class of ``model`` defines ``train_step``, this package's classes left out."""
    for cls in type(model).__mro__:
        package = cls.__module__.split(".")[0]
        if "train_step" in vars(cls) and package != "keras_recompute":
            return package != "keras"
    return True


@contextlib.contextmanager
def watching_for_losses(model: Any, on_none: Callable[[], None]) -> Iterator[None]:
    """Call ``on_none()`` where ``model`` computes its loss in the block and has none.

    Keras on JAX takes 0 then, and trains nothing; its other backends refuse the step. A class that
    computes the loss itself is not watched.
    """
    import keras

    if getattr(model.compute_loss, "__func__", None) is not keras.Model.compute_loss:
        yield
        return
    compute_loss = model.compute_loss

    @functools.wraps(compute_loss)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if model._compile_loss is None and not model.losses:
            on_none()
        return compute_loss(*args, **kwargs)

    vars(model)["compute_loss"] = watched  # to set an attribute would track it
    try:
        yield
    finally:
        del vars(model)["compute_loss"]


def record_loss(model: Any, loss: Any, samples: Any) -> None:
    """Update the metric that Keras reports as the loss by ``loss`` over ``samples`` samples."""
    model._loss_tracker.update_state(loss, sample_weight=samples)


def optimizer_index(optimizer: Any, variable: Any) -> int:
    """Return the index of ``variable`` in a built ``optimizer``."""
    index: int = optimizer._get_variable_index(variable)
    return index


def is_within_fit(arguments: Mapping[str, Any]) -> bool:
    """Whether ``evaluate`` was called by ``fit``, judging by its ``arguments``."""
    return bool(arguments.get("_use_cached_eval_dataset"))


def split_for_validation(x: Any, share: float) -> tuple[Any, Any]:
    """Return the parts of ``x`` that ``fit(x, validation_split=share)`` trains on and evaluates."""
    (trained,), (validation,) = split_all_for_validation((x,), share)
    return trained, validation


def split_all_for_validation(
    parts: tuple[Any, ...], share: float
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the training and validation parts of several arrays, as ``fit`` splits them."""
    from keras.src.trainers.data_adapters.array_slicing import train_validation_split

    trained, validation = train_validation_split(parts, share)
    return tuple(trained), tuple(validation)
