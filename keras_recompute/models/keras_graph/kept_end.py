"""The last sections of a training step, which are kept where a replay would take as much.

The backward pass begins at the end. What the last sections hold is freed before an earlier section
is replayed, so that the larger of the two is the peak, each with a gradient of a weight. Images
shrink on their way through a network of convolutions: many of its sections can be kept.

Sizes are those of the outputs of calls. A layer with layers inside, an attention, and a layer of
the user's own may hold more, in the forward pass as in a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from ...seams.keras.layers import layers_in
from .call_graph import Call, Graph, Key, Ref, is_of_keras, operations_of, read_graph
from .sections import Section
from .submodel_inlining import InputAdapter, functional_run_by

CONVOLUTIONS = keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D


@dataclass(frozen=True)
class Sizes:
    """Bytes of a training pass, by value and by call.

    Attributes:
        made: What calls make. For a call that is not ``known`` it is the least.
    """

    values: dict[Key, int] = field(default_factory=dict)
    made: dict[Call, int] = field(default_factory=dict)
    known: set[Call] = field(default_factory=set)


def first_kept(sections: Sequence[Section], sizes: Sizes) -> int:
    """Return the number of the first section that is kept, with all behind it."""
    costs = _costs(sections, sizes)
    kept = len(sections)
    # Behind the last checkpoint nothing is ever replayed.
    while kept and not sections[kept - 1].recomputed:
        kept -= 1
    peak_bytes = max([_peak_from(kept, costs), *(cost.replay for cost in costs[:kept])])
    while kept > 1 and all(cost.known for cost in costs[kept:]):
        last = costs[kept - 1]
        # Its own replay holds the same of it, whatever that is.
        if _peak_from(kept - 1, costs) > (peak_bytes if last.known else last.replay):
            break
        kept -= 1
    return kept


@dataclass(frozen=True)
class _Cost:
    """Bytes of a section.

    Attributes:
        read: What it and all sections before it are given.
        made: What it makes.
        copies: Copies of kernels, which a replay holds (see ``torch_kernels``).
        gradient: The largest gradient of a weight.
        known: Whether it holds no more than it makes.
    """

    read: int
    made: int
    copies: int
    gradient: int
    known: bool

    @property
    def replay(self) -> int:
        """What there is while it is replayed."""
        return self.read + self.made + self.copies + self.gradient


def _costs(sections: Sequence[Section], sizes: Sizes) -> list[_Cost]:
    costs = []
    read: set[Key] = set()
    for section in sections:
        # An input stays until the backward pass has gone through its section.
        read.update(section.inputs)
        given = sum(sizes.values.get(key, 0) for key in read)
        made = sum(sizes.made[call] for call in section.calls)
        weights, copies = [0], 0
        for operation in operations_of(section.calls):
            if isinstance(operation, keras.layers.Layer):
                weights += map(_bytes_of, operation.trainable_variables)
            if isinstance(operation, CONVOLUTIONS):
                copies += _bytes_of(operation.kernel)
        known = sizes.known.issuperset(section.calls)
        costs.append(_Cost(given, made, copies, max(weights), known))
    return costs


def _peak_from(kept: int, costs: Sequence[_Cost]) -> int:
    """Return the most that there is until the sections from ``kept`` on have run backward."""
    held, most = costs[kept - 1].read if kept else 0, 0
    for cost in costs[kept:]:
        # Unlike a replay, they are all held when the backward pass begins.
        held += cost.made
        most = max(most, held + cost.gradient)
    return most


def sizes_of(graph: Graph, inputs: Sequence[Any]) -> Sizes | None:
    """Return the sizes of a training pass on ``inputs``; None if the shapes are not known.

    A layer of the user's own is asked for its ``compute_output_shape``, and never called.
    """
    given = []
    for value in inputs:
        # Keras computes shapes from its own type of spec only.
        dtype = keras.backend.standardize_dtype(value.dtype)
        given.append(keras.KerasTensor(tuple(value.shape), dtype))
    sizes = Sizes()
    try:
        return sizes if _add_calls(graph, given, sizes) else None
    except Exception:  # of a layer, whose shapes are not known then
        return None


def _add_calls(graph: Graph, given: Sequence[keras.KerasTensor], sizes: Sizes) -> bool:
    """Add the calls of ``graph`` to ``sizes``; return whether all their shapes are known."""
    specs: dict[Key, keras.KerasTensor] = dict(zip(graph.inputs, given))
    sizes.values.update((key, _bytes_of(spec)) for key, spec in specs.items())

    def fill(leaf: Any) -> Any:
        return specs[leaf.key] if isinstance(leaf, Ref) else leaf

    for call in graph.calls:
        operation = call.operation
        args, kwargs = keras.tree.map_structure(fill, (call.args, call.kwargs))
        if isinstance(operation, InputAdapter):
            found = keras.tree.flatten(args)
        elif _has_shapes(operation):
            found = keras.tree.flatten(operation.compute_output_spec(*args, **kwargs))
        else:
            return False
        specs.update(zip(call.outputs, found))
        outputs = {key: _bytes_of(specs[key]) for key in call.outputs}
        sizes.values.update(outputs)
        sizes.made[call] = sum(outputs.values())
        if _is_plain(operation):
            sizes.known.add(call)
        elif (inner := _graph_inside(operation)) is not None:
            inside = Sizes()
            if _add_calls(inner, keras.tree.flatten(args), inside):
                sizes.made[call] = sum(inside.made.values())
                sizes.known.update([call] if inside.known.issuperset(inner.calls) else [])
    return True


def _graph_inside(operation: Any) -> Graph | None:
    functional = functional_run_by(operation)
    return None if functional is None else read_graph(functional)


def _has_shapes(operation: Any) -> bool:
    plain = keras.layers.Layer.compute_output_shape
    return is_of_keras(operation) or type(operation).compute_output_shape is not plain


def _is_plain(operation: Any) -> bool:
    """Whether ``operation`` holds about its outputs, and no more."""
    if isinstance(operation, InputAdapter):
        return True
    if not is_of_keras(operation) or ".attention." in type(operation).__module__:
        return False
    is_layer = isinstance(operation, keras.layers.Layer)
    return not is_layer or not layers_in(operation, include_self=False)


def _bytes_of(spec: keras.KerasTensor | keras.Variable) -> int:
    return int(np.prod(spec.shape, dtype=int)) * np.dtype(spec.dtype).itemsize
