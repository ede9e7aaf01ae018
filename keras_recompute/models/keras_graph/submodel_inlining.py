"""Inlines submodels in the graph of a model, without calling any layer.

A model inside a model is one call of the graph, and a checkpoint behind it would replay all of it
at once. Inlined, its layers stand in the graph as if they had been written there. A classifier on a
backbone is then a chain like the backbone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import keras

from ...seams.keras.graph import Functional, flat_inputs, nodes_of
from ...seams.keras.graph import runs_plain_graph as runs_keras_graph
from ...seams.keras.layers import is_in_remat_scope, mask_of
from .call_graph import Call, Graph, InitialState, Key, Ref, read_graph

# The modules of models that run the graph, by sections. They stand above this one.
_OF_OURS = ("keras_recompute.models.classes.model", "keras_recompute.models.classes.placed_model")


@dataclass(frozen=True, eq=False)
class InputAdapter:
    """What a functional model does to the types and ranks of its inputs before its first layer.

    It returns the inputs as a list.
    """

    model: keras.Model

    @property
    def name(self) -> str:
        """The name of the model, as of any operation."""
        return str(self.model.name)

    def __call__(self, inputs: Any) -> list[Any]:
        return flat_inputs(self.model, inputs)


def runs_its_graph(model: Any) -> bool:
    """Whether ``model`` is functional and runs its graph of layers, not a method of its class."""
    return runs_keras_graph(model, ours=_OF_OURS)


def inline_submodels(model: keras.Model) -> Graph:
    """Return the graph of a functional ``model`` with all models inside it inlined."""
    graph = read_graph(model)
    masked = masked_values(model)
    calls: list[Call] = []
    ranks = dict(graph.ranks)
    for call in graph.calls:
        if not _is_inlined(call, masked):
            calls.append(call)
            continue
        put, ranks_inside = inlined_calls(
            call, inline_submodels(call.operation), InputAdapter(call.operation)
        )
        calls += put
        ranks.update(ranks_inside)
    return replace(graph, calls=tuple(calls), ranks=ranks)


def masked_values(model: keras.Model) -> set[Key]:
    """Return the values in the graph of a functional ``model`` that carry a mask."""
    found = set()
    for node in nodes_of(model):
        for tensor in (*node.input_tensors, *node.outputs):
            if mask_of(tensor) is not None:
                found.add(id(tensor))
    return found


def can_inline(call: Call, functional: keras.Model, masked: set[Key]) -> bool:
    """Whether the layers of ``functional`` can stand in place of the ``call`` that runs it.

    They can if nothing is done to the model or by it as a whole. ``masked`` are the values that
    carry a mask where the call is.
    """
    model = call.operation
    # Keras attaches the masks of a model's inputs to its outputs.
    if (
        masked.intersection(call.inputs)
        or model.activity_regularizer is not None
        or is_in_remat_scope(model)
    ):
        return False
    given = [value for value in keras.tree.flatten(call.kwargs) if value is not None]
    outputs = list(map(id, functional.outputs))
    is_distinct = len(set(outputs)) == len(outputs)
    leave_once = is_distinct and not set(map(id, functional.inputs)).intersection(outputs)
    return leave_once and len(call.args) == 1 and not given


def inlined_calls(
    call: Call, inside: Graph, adapter: InputAdapter | None
) -> tuple[list[Call], dict[Key, int]]:
    """Return the calls ``inside`` the called model as they replace ``call``, and their ranks.

    Without an ``adapter`` they read what ``call`` reads as it is. Ranks are those of their values.
    """
    # No other call has it.
    use = call.outputs[0]
    places = dict(zip(inside.outputs, call.outputs))
    if adapter is None:
        places.update(zip(inside.inputs, call.inputs))

    def renamed(key: Key) -> Key:
        return key if isinstance(key, InitialState) else places.get(key, (use, key))

    calls = []
    if adapter is not None:
        inputs = tuple(map(renamed, inside.inputs))
        calls.append(Call(adapter, call.args, {}, call.inputs, inputs))
    for each in inside.calls:
        inlined = _renamed(each, renamed)
        # It counts for all layers inside.
        if call.training is not None:
            inlined = replace(inlined, training=call.training)
        calls.append(inlined)
    return calls, {renamed(key): rank for key, rank in inside.ranks.items()}


def _is_inlined(call: Call, masked: set[Key]) -> bool:
    model = call.operation
    if not runs_its_graph(model) or type(model).__call__ is not Functional.__call__:
        return False
    # A model of ours has its own checkpoints and loops.
    return not hasattr(model, "recomputation_levels") and can_inline(call, model, masked)


def _filled(call: Call, renamed: Any) -> dict[str, Any]:
    def leaf(value: Any) -> Any:
        return Ref(renamed(value.key)) if isinstance(value, Ref) else value

    return {
        "args": keras.tree.map_structure(leaf, call.args),
        "kwargs": keras.tree.map_structure(leaf, call.kwargs),
    }


def _renamed(call: Call, renamed: Any) -> Call:
    inputs, outputs = tuple(map(renamed, call.inputs)), tuple(map(renamed, call.outputs))
    return replace(call, inputs=inputs, outputs=outputs, **_filled(call, renamed))
