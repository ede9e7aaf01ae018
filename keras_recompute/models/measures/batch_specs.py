"""The types and shapes of a batch as ``fit`` passes it on, as Keras's symbolic tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ...errors import InvalidArgumentError
from ..execution.batch_sizes import batch_size_of


def batch_spec(leaf: Any, batch_size: int | None = None) -> keras.KerasTensor:
    """Return the type and shape of a part of a batch.

    ``fit`` casts floats of other libraries to Keras's own floating type. ``batch_size`` replaces
    the first size.
    """
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf)
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    is_given = keras.ops.is_tensor(leaf) or isinstance(leaf, keras.KerasTensor)
    if dtype.startswith("float") and not is_given:
        dtype = keras.config.floatx()
    shape = tuple(leaf.shape)
    if batch_size and shape:
        shape = batch_size, *shape[1:]
    return keras.KerasTensor(shape, dtype)


def input_specs(functional: keras.Model, batch_size: int | None) -> list[keras.KerasTensor]:
    """Return type and shape of each input of the model for ``batch_size`` samples.

    Raises InvalidArgumentError where a size stays unknown, or is fixed to another one.
    """
    batch = batch_size_of(functional, batch_size)
    specs = []
    for tensor in functional.inputs:
        first, *rest = tensor.shape
        shape = (batch if first is None else first, *rest)
        if None in shape:
            raise InvalidArgumentError(
                f"the input {tensor.name!r} of {functional.name!r} has the shape {tensor.shape}, "
                "and its memory depends on the unknown sizes. Fix them in keras.Input, or give "
                "sample=, a batch as for fit"
            )
        specs.append(keras.KerasTensor(shape, tensor.dtype))
    return specs


def sampled_specs(
    functional: keras.Model,
    sample: Any,
    standardize: Callable[[Any], Sequence[Any]],
    *,
    batch_size: int | None,
) -> list[keras.KerasTensor]:
    """Return type and shape of the inputs of the model when it is fitted to ``sample``.

    ``sample`` is ``x``, ``(x, y)``, ``(x, y, weights)``, or a data set of them. ``standardize``
    returns the flat inputs that the model makes of a nest of types and shapes. Raises
    InvalidArgumentError where the sample does not fit the model.
    """
    x = first_batch(sample)[0]
    leaves = keras.tree.flatten(x)
    if len(leaves) != len(functional.inputs):
        names = ", ".join(repr(tensor.name) for tensor in functional.inputs)
        raise InvalidArgumentError(
            f"sample= has {len(leaves)} arrays, and the inputs of {functional.name!r} are {names}. "
            "Give the inputs as for fit, an array or a list or dict of them, or a tuple (x, y)"
        )
    try:
        given = standardize(keras.tree.map_structure(batch_spec, x))
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"sample= does not fit the inputs of {functional.name!r}: {error}"
        ) from error
    specs = []
    for spec, wanted in zip(given, functional.inputs):
        # The first size is the batch's, which may be any.
        fits = len(spec.shape) == len(wanted.shape)
        for size, expected in zip(spec.shape[1:], wanted.shape[1:]):
            fits = fits and expected in (None, size)
        if not fits:
            raise InvalidArgumentError(
                f"sample= has shape {tuple(spec.shape)} for the input {wanted.name!r} of "
                f"{functional.name!r}, which takes {wanted.shape}: give a batch of that shape"
            )
        shape = batch_size or spec.shape[0], *spec.shape[1:]
        specs.append(keras.KerasTensor(shape, keras.backend.standardize_dtype(spec.dtype)))
    return specs


def text_of_specs(specs: Sequence[Any]) -> str:
    """Return ``specs`` as messages name them: ``float32(8, 4), int32(8,)``."""
    return ", ".join(f"{spec.dtype}{tuple(spec.shape)}" for spec in specs)


def first_batch(sample: Any) -> tuple[Any, ...]:
    """Return a batch, or the first of a data set, as ``(x,)``, ``(x, y)``, ``(x, y, weights)``."""
    if isinstance(sample, keras.utils.PyDataset):
        sample = sample[0]
    # Data sets of TensorFlow, loaders of PyTorch, generators.
    elif not isinstance(sample, (tuple, list, dict)) and not hasattr(sample, "shape"):
        sample = next(iter(sample))
    return sample if isinstance(sample, tuple) else (sample,)


def targets_in(sample: Any, *, batch_size: int | None = None) -> tuple[Any, ...]:
    """Return types and shapes of the targets of ``sample``, and of its sample weights if any.

    The result is empty without a sample. ``batch_size`` replaces the batch size of the sample.
    """
    # An iterator has given its batch to the inputs.
    if sample is None or hasattr(sample, "__next__"):
        return ()

    parts = tuple(part for part in first_batch(sample)[1:] if part is not None)
    return keras.tree.map_structure(lambda leaf: batch_spec(leaf, batch_size), parts)
