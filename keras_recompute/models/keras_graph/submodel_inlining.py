"""Inlines submodels in the graph of a model, without calling any layer.

A model inside a model is one call of the graph, and a checkpoint behind it would replay all of it
at once. Inlined, its layers stand in the graph as if they had been written there. A classifier on a
backbone is then a chain like the backbone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import keras

from ...errors import UnsupportedError
from ...seams.keras.graph import (
    Functional,
    flat_inputs,
    functional_of_sequential,
    has_call_of,
    nodes_of,
)
from ...seams.keras.graph import runs_plain_graph as runs_keras_graph
from ...seams.keras.layers import is_in_remat_scope, mask_of
from .call_graph import Call, Graph, InitialState, Key, Ref, read_graph

# The modules of models that run the graph, by sections. They stand above this one.
_OF_OURS = ("keras_recompute.models.classes.model", "keras_recompute.models.classes.placed_model")


@dataclass(frozen=True, eq=False)
class InputAdapter:
    """What a functional model does to the types and ranks of its inputs before its first layer.

    It returns the inputs as a list. A sequential ``model`` does the same, and must still have the
    ``layers`` that stand in the graph behind this.
    """

    model: keras.Model
    layers: tuple[keras.layers.Layer, ...] = ()

    @property
    def name(self) -> str:
        """The name of the model, as of any operation."""
        return str(self.model.name)

    def __call__(self, inputs: Any) -> list[Any]:
        # Unlike a functional model, a sequential one may get or lose layers at any time.
        if self.layers and list(self.layers) != self.model.layers:
            raise UnsupportedError(
                f"the layers of {self.name!r} were changed by add() or pop() after checkpoints "
                "were put between them: call checkpointed or plan again"
            )
        return flat_inputs(functional_run_by(self.model), inputs)


def runs_its_graph(model: Any) -> bool:
    """Whether ``model`` is functional and runs its graph of layers, not a method of its class."""
    return runs_keras_graph(model, ours=_OF_OURS)


def runs_its_layers(model: Any) -> bool:
    """Whether ``model`` is sequential and runs its layers, not a method of its class."""
    return isinstance(model, keras.Sequential) and has_call_of(keras.Sequential, model)


def functional_run_by(model: Any) -> Any:
    """Return the functional model whose graph ``model`` runs; None where it runs none.

    That is the model itself, or the one inside a sequential model, which has it once it is built.
    """
    if runs_its_layers(model):
        return functional_of_sequential(model)
    return model if runs_its_graph(model) else None


def inline_submodels(model: keras.Model, *, opens_sequential: bool = True) -> Graph:
    """Return the graph of a functional ``model`` with all models inside it inlined.

    Sequential models are inlined where ``opens_sequential``.
    """
    graph = read_graph(model)
    masked = masked_values(model)
    calls: list[Call] = []
    ranks = dict(graph.ranks)
    for call in graph.calls:
        functional = _inlined_functional(call, masked)
        is_sequential = functional is not call.operation
        if functional is None or (is_sequential and not opens_sequential):
            calls.append(call)
            continue
        inside = inline_submodels(functional, opens_sequential=opens_sequential)
        layers = tuple(call.operation.layers) if is_sequential else ()
        put, ranks_inside = inlined_calls(call, inside, InputAdapter(call.operation, layers))
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


def _inlined_functional(call: Call, masked: set[Key]) -> Any:
    """Return the functional model whose layers stand in place of ``call``; None where none do."""
    model = call.operation
    functional = functional_run_by(model)
    # A model of ours has its own checkpoints and loops.
    if functional is None or hasattr(model, "recomputation_levels"):
        return None
    is_plain_call = type(model).__call__ in (Functional.__call__, keras.Sequential.__call__)
    return functional if is_plain_call and can_inline(call, functional, masked) else None


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
