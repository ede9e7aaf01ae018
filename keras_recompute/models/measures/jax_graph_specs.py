"""The types and shapes of all values of a model for one batch, on JAX.

The graph is run on types and shapes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import keras

from ...liveness.jax_functions import batch_spec as shape_of
from ...seams.keras.graph import flat_inputs
from ..keras_graph.call_graph import Graph, Key, as_trained, keys_made, starting_values
from .batch_specs import input_specs, sampled_specs


def value_specs(
    functional: keras.Model, graph: Graph, *, batch_size: int | None, sample: Any = None
) -> dict[Key, keras.KerasTensor]:
    """Return type and shape of each value of ``graph``, for ``batch_size`` samples or ``sample``.

    Raises InvalidArgumentError where a size stays unknown, or ``sample`` does not fit the model.
    """
    inputs = (
        input_specs(functional, batch_size)
        if sample is None
        else specs_from_sample(functional, sample, batch_size=batch_size)
    )
    keys = [*graph.initial_states, *keys_made(graph.calls)]

    def run(*arrays: jax.Array) -> list[jax.Array]:
        values = starting_values(graph, arrays)
        # What layers change, such as seeds and statistics, stays in the scope.
        with keras.StatelessScope():
            for call in graph.calls:
                as_trained(call).run(values)
        return list(map(values.__getitem__, keys))

    found = dict(zip(graph.inputs, inputs))
    for key, made in zip(keys, jax.eval_shape(run, *map(shape_of, inputs))):
        found[key] = keras.KerasTensor(made.shape, keras.backend.standardize_dtype(made.dtype))
    return found


def specs_from_sample(
    functional: keras.Model, sample: Any, *, batch_size: int | None = None
) -> list[keras.KerasTensor]:
    """Return type and shape of the inputs of the model when it is fitted to ``sample``."""

    def standardize(x: Any) -> Sequence[Any]:
        shapes = keras.tree.map_structure(shape_of, x)
        return list(jax.eval_shape(lambda x: flat_inputs(functional, x), shapes))

    return sampled_specs(functional, sample, standardize, batch_size=batch_size)
