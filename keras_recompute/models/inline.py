"""Graphs of models as data: those of models inside are opened, and checkpoints are put in, without calling any layer.

A model inside a model is one call of the graph, and a checkpoint behind it would replay all of it at once. Opened, its layers
stand in the graph as if they had been written there: a classifier on a backbone is then a chain as the backbone is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import keras

from ..layers.recomputation_checkpoint import RecomputationCheckpoint
from ..seams.keras.graph import Functional, flat_inputs, nodes_of
from ..seams.keras.graph import runs_its_graph as runs_keras_graph
from ..seams.keras.layers import mask_of, rematerializes
from .graph import Call, Graph, InitialState, Key, Ref, read_graph

_OF_OURS = (f"{__package__}.model", f"{__package__}.placed")  # models that run the graph, by sections


@dataclass(frozen=True, eq=False)
class Entrance:
    """What a functional model does to its inputs before its first layer: their types and ranks, as a list."""

    model: keras.Model

    @property
    def name(self) -> str:
        """The name of the model, as of any operation."""
        return str(self.model.name)

    def __call__(self, inputs: Any) -> list[Any]:
        return flat_inputs(self.model, inputs)


def runs_its_graph(model: Any) -> bool:
    """Whether ``model`` is functional and computes what its graph of layers says, not what a method of its class does."""
    return runs_keras_graph(model, ours=_OF_OURS)


def opened(model: keras.Model) -> Graph:
    """Return the graph of a functional ``model`` with the models in it opened, and those in them."""
    graph = read_graph(model)
    masked = {id(t) for t in _tensors(model) if mask_of(t) is not None}
    calls: list[Call] = []
    ranks = dict(graph.ranks)
    for call in graph.calls:
        if not _can_be_opened(call, masked):
            calls.append(call)
            continue
        inside = opened(call.operation)
        use = call.outputs[0]  # no other call has it
        leaves = dict(zip(inside.outputs, call.outputs))

        def renamed(key: Key, leaves: dict[Key, Key] = leaves, use: Key = use) -> Key:
            return key if isinstance(key, InitialState) else leaves.get(key, (use, key))

        entered = tuple(renamed(key) for key in inside.inputs)
        calls.append(Call(Entrance(call.operation), call.args, {}, call.inputs, entered))
        calls += [_renamed(each, renamed) for each in inside.calls]
        ranks.update((renamed(key), rank) for key, rank in inside.ranks.items())
    return replace(graph, calls=tuple(calls), ranks=ranks)


def marked(graph: Graph, positions: Collection[int]) -> Graph:
    """Return ``graph`` with a checkpoint after each of the calls at ``positions``, counted from 0."""
    calls: list[Call] = []
    kept: dict[Key, Key] = {}

    def renamed(key: Key) -> Key:
        return kept.get(key, key)

    for number, call in enumerate(graph.calls):
        calls.append(replace(call, inputs=tuple(map(renamed, call.inputs)), **_filled(call, renamed)))
        if number in positions:
            outputs = tuple(("kept", key) for key in call.outputs)
            mark = RecomputationCheckpoint(was_inserted=True, name=f"{call.operation.name}_checkpoint")
            calls.append(Call(mark, ([Ref(key) for key in call.outputs],), {}, call.outputs, outputs))
            kept.update(zip(call.outputs, outputs))
    ranks = {**graph.ranks, **{after: graph.ranks.get(before, 0) for before, after in kept.items()}}
    return replace(graph, outputs=tuple(map(renamed, graph.outputs)), calls=tuple(calls), ranks=ranks)


def _tensors(model: keras.Model) -> list[Any]:
    return [t for node in nodes_of(model) for t in (*node.input_tensors, *node.outputs)]


def _can_be_opened(call: Call, masked: set[Key]) -> bool:
    """Whether the layers of the model that is called can stand in its place: nothing is done to it or by it as a whole."""
    model = call.operation
    if not runs_its_graph(model) or type(model).__call__ is not Functional.__call__:
        return False
    # Keras hangs the masks of a model's inputs on its outputs; a model of ours has its own checkpoints and loops.
    if masked.intersection(call.inputs) or hasattr(model, "recomputation_levels") or model.activity_regularizer is not None:
        return False
    given = [value for value in keras.tree.flatten(call.kwargs) if value is not None]
    outputs, inputs = [id(t) for t in model.outputs], {id(t) for t in model.inputs}
    leave_once = len(set(outputs)) == len(outputs) and not inputs.intersection(outputs)
    return leave_once and len(call.args) == 1 and not given and not rematerializes(model)


def _filled(call: Call, renamed: Any) -> dict[str, Any]:
    def leaf(value: Any) -> Any:
        return Ref(renamed(value.key)) if isinstance(value, Ref) else value

    return {"args": keras.tree.map_structure(leaf, call.args), "kwargs": keras.tree.map_structure(leaf, call.kwargs)}


def _renamed(call: Call, renamed: Any) -> Call:
    inputs, outputs = tuple(map(renamed, call.inputs)), tuple(map(renamed, call.outputs))
    return replace(call, inputs=inputs, outputs=outputs, **_filled(call, renamed))
