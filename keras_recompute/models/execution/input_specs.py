"""The types and shapes of all values of a model for one batch.

They are those of the model with open sizes filled in, or of a sample batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...errors import InvalidArgumentError
from ...liveness.tensorflow_functions import batch_spec
from ...seams.keras.graph import flat_inputs, nodes_of
from ..keras_graph.call_graph import Graph, InitialState, Key, Values, keys_made
from .batch_sizes import batch_size_of
from .side_outputs import SideOutputs


def value_specs(
    functional: keras.Model, graph: Graph, *, batch_size: int | None, sample: Any = None
) -> dict[Key, tf.TensorSpec]:
    """Return type and shape of each value of ``graph``, for ``batch_size`` samples or ``sample``.

    Raises InvalidArgumentError where a size stays unknown, or ``sample`` does not fit the model.
    """
    if sample is None:
        batch_size = batch_size_of(functional, batch_size)
        inputs = [_with_batch(tensor, batch_size) for tensor in functional.inputs]
    else:
        inputs = specs_from_sample(functional, sample, batch_size=batch_size)
    made: dict[Key, keras.KerasTensor] = {}
    for node in nodes_of(functional):
        made.update(zip(map(id, node.outputs), node.outputs))
    if sample is None and made.keys() >= set(keys_made(graph.calls)):
        batch = inputs[0].shape[0] if inputs[0].shape.rank else None
        found: dict[Key, tf.TensorSpec] = {key: _with_batch(t, batch) for key, t in made.items()}
        found.update(zip(graph.inputs, inputs))
        for key in graph.initial_states:
            found[key] = tf.TensorSpec((batch, *_state_shape(key)), key.layer.compute_dtype)
    else:
        # A model inside has the sizes that are open there, not the ones that it is called with.
        found = _traced(graph, inputs)
    for key, spec in found.items():
        if spec.shape.rank is None or None in spec.shape:
            makers = [call.operation.name for call in graph.calls if key in call.outputs]
            at = makers[0] if makers else functional.inputs[0].name
            raise InvalidArgumentError(
                f"{at!r} in {functional.name!r} has the shape {spec.shape}, and its memory "
                "depends on the unknown sizes. Fix them in keras.Input, or give sample=, a batch "
                "as for fit"
            )
    return found


def _with_batch(tensor: keras.KerasTensor, batch: int | None) -> tf.TensorSpec:
    """Return type and shape of ``tensor``, with ``batch`` as its first size if that is open."""
    shape = list(tensor.shape)
    if shape and shape[0] is None:
        shape[0] = batch
    return tf.TensorSpec(shape, tensor.dtype)


def specs_from_sample(
    functional: keras.Model, sample: Any, *, batch_size: int | None = None
) -> list[tf.TensorSpec]:
    """Return type and shape of the inputs of the model when it is fitted to ``sample``.

    ``sample`` is ``x``, ``(x, y)``, ``(x, y, weights)``, or a data set of them. Raises
    InvalidArgumentError where it does not fit the model.
    """
    x = first_batch(sample)[0]
    if len(keras.tree.flatten(x)) != len(functional.inputs):
        names = ", ".join(repr(t.name) for t in functional.inputs)
        raise InvalidArgumentError(
            f"sample= has {len(keras.tree.flatten(x))} arrays, and the inputs of "
            f"{functional.name!r} are {names}. Give the inputs as for fit, an array or a list or "
            "dict of them, or a tuple (x, y)"
        )
    try:
        with tf.Graph().as_default():
            given = flat_inputs(functional, keras.tree.map_structure(_placeholder, x))
            specs = [
                tf.TensorSpec([batch_size or t.shape[0], *t.shape[1:]], t.dtype) for t in given
            ]
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"sample= does not fit the inputs of {functional.name!r}: {error}"
        ) from error
    for spec, wanted in zip(specs, functional.inputs):
        if not tf.TensorShape(wanted.shape).is_compatible_with(spec.shape):
            raise InvalidArgumentError(
                f"sample= has shape {spec.shape} for the input {wanted.name!r} of "
                f"{functional.name!r}, which takes {wanted.shape}: give a batch of that shape"
            )
    return specs


def text_of_specs(specs: Sequence[tf.TensorSpec]) -> str:
    """Return ``specs`` as messages name them: ``float32(8, 4), int32(8,)``."""
    return ", ".join(f"{spec.dtype.name}{spec.shape}" for spec in specs)


def first_batch(sample: Any) -> tuple[Any, ...]:
    """Return a batch, or the first of a data set, as ``(x,)``, ``(x, y)``, ``(x, y, weights)``."""
    if hasattr(sample, "__next__") or isinstance(sample, tf.data.Dataset):
        sample = next(iter(sample))
    elif isinstance(sample, keras.utils.PyDataset):
        sample = sample[0]
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


def _placeholder(leaf: Any) -> tf.Tensor:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf)
    return tf.compat.v1.placeholder(leaf.dtype, leaf.shape)


def _traced(graph: Graph, inputs: Sequence[tf.TensorSpec]) -> dict[Key, tf.TensorSpec]:
    """Return the shapes of the values of ``graph``, found by tracing its calls."""
    found: dict[Key, tf.TensorSpec] = {}
    side_outputs = SideOutputs(graph.calls)

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        values: Values = dict(zip(graph.inputs, tensors))
        for state in graph.initial_states:
            batch = inputs[0].shape[0]
            values[state] = keras.tree.flatten(state.layer.get_initial_state(batch_size=batch))[
                state.slot
            ]

        def work() -> list[tf.Tensor]:
            for call in graph.calls:
                call.run(values)
            return []

        side_outputs.collect(work)
        for key, value in values.items():
            found[key] = tf.TensorSpec(value.shape, value.dtype)
        return []

    tf.function(run, autograph=False).get_concrete_function(*inputs)
    return found


def _state_shape(state: InitialState) -> tuple[int, ...]:
    size = keras.tree.flatten(state.layer.state_size)[state.slot]
    return tuple(size) if isinstance(size, (tuple, list)) else (size,)
