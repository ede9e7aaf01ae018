"""The types and shapes of all values of a model for one batch, on PyTorch.

The graph is run on fake tensors, which have types and shapes and no values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ...liveness.torch_fake_runs import fake_of, fake_run
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
    found = dict(zip(graph.inputs, inputs))
    with fake_run(functional.variables, functional.layers):
        values = starting_values(graph, list(map(fake_of, inputs)))
        for call in graph.calls:
            as_trained(call).run(values)
        for key in (*graph.initial_states, *keys_made(graph.calls)):
            dtype = keras.backend.standardize_dtype(values[key].dtype)
            found[key] = keras.KerasTensor(tuple(values[key].shape), dtype)
    return found


def specs_from_sample(
    functional: keras.Model, sample: Any, *, batch_size: int | None = None
) -> list[keras.KerasTensor]:
    """Return type and shape of the inputs of the model when it is fitted to ``sample``."""

    def standardize(x: Any) -> Sequence[Any]:
        with fake_run((), ()):
            return flat_inputs(functional, keras.tree.map_structure(fake_of, x))

    return sampled_specs(functional, sample, standardize, batch_size=batch_size)
