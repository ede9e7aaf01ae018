"""The data of an execution: microbatches of one known shape, stacked on a new first axis.

Source: Graphcore, fit.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ...seams.keras.training import split_for_validation


def bound_arguments(method: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call of ``method`` by name.

    Raises TypeError as the call would.
    """
    bound = inspect.signature(method).bind(*args, **kwargs)
    return {**bound.arguments, **bound.kwargs}


def split_validation(
    x: Any, validation_split: float | None, validation_data: Any
) -> tuple[Any, Any]:
    """Return the inputs that ``fit`` trains on, and its validation inputs or None."""
    if validation_data is not None:
        return x, validation_data[0] if isinstance(
            validation_data, (list, tuple)
        ) else validation_data
    if not validation_split:
        return x, None
    return split_for_validation(x, validation_split)


def require_equal_batches(x: Any, batch_size: int | None) -> None:
    """Raise ValueError unless all batches of the data have one known size."""
    if isinstance(x, tf.data.Dataset):
        if any(
            None in (spec.shape.as_list() if spec.shape.rank else [None])
            for spec in tf.nest.flatten(x.element_spec)
        ):
            raise ValueError(
                "the size of the dataset's batches is not known: batch it with drop_remainder=True"
            )
        return
    first = _first(x)
    if first is None:
        raise ValueError(
            f"the size of the batches of data of type {type(x).__name__} is not known: use a "
            "tf.data.Dataset"
        )
    if first.shape[0] % (batch_size or 32):
        raise ValueError(
            f"{first.shape[0]} samples do not divide into batches of "
            f"batch_size={batch_size or 32}: leave some out"
        )


def known_steps(x: Any, batch_size: int | None) -> int | None:
    """Return the number of batches of ``x``, or None if it is unknown.

    Raises ValueError for an infinite dataset.
    """
    if isinstance(x, tf.data.Dataset):
        cardinality = int(x.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "the dataset repeats without end, so its number of steps is not known. Give "
                "steps_per_epoch= to fit, validation_steps= for its validation data, or steps= "
                "to evaluate and predict"
            )
        return cardinality if cardinality >= 0 else None
    first = _first(x)
    # Rounded up, because the last batch may be partial. 32 is Keras's default.
    return None if first is None else -(-first.shape[0] // (batch_size or 32))


def batch_spec(x: Any, batch_size: int | None) -> Any:
    """Return the nest of specs of one batch of the inputs ``x``."""
    if isinstance(x, tf.data.Dataset):
        element = x.element_spec
        spec = element[0] if isinstance(element, tuple) else element
        return tf.nest.map_structure(
            lambda s: tf.TensorSpec(s.shape, single_precision(s.dtype)), spec
        )
    return tf.nest.map_structure(
        lambda a: tf.TensorSpec(
            (batch_size or 32, *np.shape(a)[1:]), single_precision(tf.as_dtype(a.dtype))
        ),
        x,
    )


def steps_that_fit(steps_per_execution: int, steps: int | None) -> int:
    """Return ``steps_per_execution``, reduced to ``steps`` with a warning if it is larger.

    Raises ValueError if it does not divide ``steps``.
    """
    if steps is None:
        return steps_per_execution
    if steps_per_execution > steps:
        warnings.warn(
            f"steps_per_execution={steps_per_execution} is more than the {steps} steps of an "
            "epoch, and is reduced to that",
            stacklevel=4,
        )
        return steps
    if steps % steps_per_execution:
        raise ValueError(
            f"{steps} steps per epoch do not divide into executions of "
            f"steps_per_execution={steps_per_execution}: change one of the two"
        )
    return steps_per_execution


def stack_microbatches(microbatches: list[Any]) -> Any:
    """Return ``microbatches``, nests of one structure, stacked leaf by leaf.

    Double precision becomes single. Raises ValueError if shapes differ.
    """
    if any(None in t.shape.as_list() for t in tf.nest.flatten(microbatches[0])):
        raise ValueError(
            "microbatches need a fixed shape: batch the dataset with drop_remainder=True"
        )

    def stack(*parts: tf.Tensor) -> tf.Tensor:
        shapes = {tuple(t.shape) for t in parts}
        if len(shapes) > 1:
            raise ValueError(
                f"microbatches need one shape, but these have {sorted(shapes)}: batch the dataset "
                "with drop_remainder=True"
            )
        return tf.cast(tf.stack(parts), single_precision(parts[0].dtype))

    return tf.nest.map_structure(stack, *microbatches)


def _first(x: Any) -> Any:
    """Return the first leaf of ``x`` if it is an array, else None."""
    first: Any = next(iter(tf.nest.flatten(x)), None)
    return first if hasattr(first, "shape") else None


def single_precision(dtype: tf.DType) -> tf.DType:
    """Return ``dtype``, or float32 for float64."""
    return tf.float32 if dtype == tf.float64 else dtype
