"""The types and shapes of all values of a model for one batch, on JAX.

Sizes that are open come from a batch size or a sample. The graph is run on types and shapes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import keras

from ...errors import InvalidArgumentError
from ...liveness.jax_functions import batch_spec
from ...seams.keras.graph import flat_inputs
from ...seams.keras.layers import takes_training
from ..keras_graph.call_graph import Call, Graph, Key, keys_made

Specs = dict[Key, jax.ShapeDtypeStruct]


def value_specs(
    functional: keras.Model, graph: Graph, *, batch_size: int | None, sample: Any = None
) -> Specs:
    """Return type and shape of each value of ``graph``, for ``batch_size`` samples or ``sample``.

    Raises InvalidArgumentError where a size stays unknown, or ``sample`` does not fit the model.
    """
    inputs = (
        _inputs(functional, batch_size)
        if sample is None
        else specs_from_sample(functional, sample, batch_size=batch_size)
    )
    keys = keys_made(graph.calls)

    def run(*arrays: jax.Array) -> list[jax.Array]:
        values: dict[Key, Any] = dict(zip(graph.inputs, arrays))
        # What layers change, such as seeds and statistics, stays in the scope.
        with keras.StatelessScope():
            for call in graph.calls:
                as_trained(call).run(values)
        return list(map(values.__getitem__, keys))

    return {**dict(zip(graph.inputs, inputs)), **dict(zip(keys, jax.eval_shape(run, *inputs)))}


def as_trained(call: Call) -> Call:
    """Return ``call`` with ``training=True``, where its operation takes it."""
    training = {"training": True} if takes_training(call.operation) else {}
    kwargs = {**call.kwargs, **training}
    return Call(call.operation, call.args, kwargs, call.inputs, call.outputs)


def _inputs(functional: keras.Model, batch_size: int | None) -> list[jax.ShapeDtypeStruct]:
    known_sizes = {tensor.shape[0] for tensor in functional.inputs} - {None}
    batch = batch_size or (known_sizes.pop() if len(known_sizes) == 1 else None)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidArgumentError(
            f"batch_size is {batch_size!r}, and the memory depends on it. Give a whole number "
            "from 1 on, fix it in keras.Input, or give sample=, a batch as for fit"
        )
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
        specs.append(jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(tensor.dtype)))
    return specs


def specs_from_sample(
    functional: keras.Model, sample: Any, *, batch_size: int | None = None
) -> list[jax.ShapeDtypeStruct]:
    """Return type and shape of the inputs of the model when it is fitted to ``sample``.

    ``sample`` is ``x``, ``(x, y)``, ``(x, y, weights)``, or a data set of them. Raises
    InvalidArgumentError where it does not fit the model.
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
        given = jax.eval_shape(
            lambda x: flat_inputs(functional, x), keras.tree.map_structure(batch_spec, x)
        )
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"sample= does not fit the inputs of {functional.name!r}: {error}"
        ) from error
    specs = []
    for spec, wanted in zip(given, functional.inputs):
        fits = len(spec.shape) == len(wanted.shape)
        for size, expected in zip(spec.shape[1:], wanted.shape[1:]):
            fits = fits and expected in (None, size)
        if not fits:
            raise InvalidArgumentError(
                f"sample= has shape {spec.shape} for the input {wanted.name!r} of "
                f"{functional.name!r}, which takes {wanted.shape}: give a batch of that shape"
            )
        shape = batch_size or spec.shape[0], *spec.shape[1:]
        specs.append(jax.ShapeDtypeStruct(shape, spec.dtype))
    return specs


def text_of_specs(specs: Sequence[Any]) -> str:
    """Return ``specs`` as messages name them: ``float32(8, 4), int32(8,)``."""
    return ", ".join(f"{spec.dtype.name}{spec.shape}" for spec in specs)


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

    def spec(leaf: Any) -> jax.ShapeDtypeStruct:
        found = batch_spec(leaf)
        is_sized = batch_size and found.shape
        shape = (batch_size, *found.shape[1:]) if is_sized else found.shape
        return jax.ShapeDtypeStruct(shape, found.dtype)

    parts = [part for part in first_batch(sample)[1:] if part is not None]
    return keras.tree.map_structure(spec, tuple(parts))
