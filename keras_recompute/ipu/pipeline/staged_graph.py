"""A model's graph with a pipeline stage for every call, and the graphs of its stages.

Values go from a stage to the next one only: what a later stage reads passes through those in between. The model's inputs
are no such values; every stage reads its microbatch where the data lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from ...layers.recomputation_checkpoint import RecomputationCheckpoint
from ...models.graph import Call, Graph, Key, Ref, read_graph
from ...seams.keras.graph import Functional, functional_of_sequential
from .stages import stage_of


def functional_of(model: Any) -> keras.Model | None:
    """Return the functional model that ``model`` is, or that a sequential one is built of; None for any other layer."""
    if isinstance(model, keras.Sequential):
        return functional_of_sequential(model)
    return model if isinstance(model, Functional) else None


def staged_graph(functional: keras.Model) -> Graph:
    """Return the graph of a functional model. Models in it that have stages or checkpoints of their own are opened."""
    graph = read_graph(functional, stage_of)
    calls = tuple(inner for call in graph.calls for inner in _opened(call))
    return replace(graph, calls=calls)


def check_stages(graph: Graph) -> None:
    """Raise ValueError if some calls have a stage and others none, or if one reads an output of a later stage."""
    if all(call.stage is None for call in graph.calls):
        return
    for call in graph.calls:
        if call.stage is None:
            raise ValueError(
                f"the call of layer {call.operation.name!r} is in no PipelineStage, but others are: "
                f"in a pipeline every call but the inputs must be in one"
            )
    made_in = {key: call.stage or 0 for call in graph.calls for key in call.outputs}
    for call in graph.calls:
        if any(made_in.get(key, 0) > (call.stage or 0) for key in call.inputs):
            raise ValueError(f"layer {call.operation.name!r} in stage {call.stage} reads an output of a later stage")


def check_shared_weights(graph: Graph, devices: Sequence[int]) -> None:
    """Raise ValueError for weights that stages on different IPUs use; ``devices`` has the IPU of each stage."""
    users: dict[int, Call] = {}
    for call in graph.calls:
        for weight in getattr(call.operation, "weights", ()):
            other = users.setdefault(id(weight), call)
            here, there = devices[call.stage or 0], devices[other.stage or 0]
            if here != there:
                raise ValueError(
                    f"layer {call.operation.name!r} is in stage {call.stage}, on IPU {here}, and its weights are used in stage "
                    f"{other.stage}, on IPU {there}: give both stages one IPU in device_mapping, or use two layers"
                )


def stage_graphs(graph: Graph, count: int) -> tuple[Graph, ...]:
    """Cut ``graph`` into ``count`` stages. The outputs of each but the last are what it hands on to the next."""
    made_in = {key: call.stage or 0 for call in graph.calls for key in call.outputs}
    stages: list[Graph] = []
    received: tuple[Key, ...] = ()
    for s in range(count):
        calls = tuple(call for call in graph.calls if (call.stage or 0) == s)
        later = {key for call in graph.calls if (call.stage or 0) > s for key in call.inputs} | set(graph.outputs)
        leaving = tuple(key for key, stage in made_in.items() if stage <= s and key in later)
        outputs = leaving if s < count - 1 else graph.outputs
        stages.append(replace(graph, inputs=(*graph.inputs, *received), outputs=outputs, calls=calls))
        received = leaving
    return tuple(stages)


def _opened(call: Call) -> list[Call]:
    """Return the calls inside the model that ``call`` calls, if they matter to a pipeline, else ``call`` itself."""
    functional = functional_of(call.operation)
    if functional is None:
        return [call]
    inner = staged_graph(functional)
    matters = any(c.stage is not None or isinstance(c.operation, RecomputationCheckpoint) for c in inner.calls)
    flat = [leaf for leaf in keras.tree.flatten(call.args) if isinstance(leaf, Ref)]
    is_plain = len(flat) == len(inner.inputs) and not any(call.kwargs.values()) and not set(inner.inputs) & set(inner.outputs)
    if not matters or not is_plain:
        return [call]
    # One model may be called several times: its values get keys of their own in each.
    keys: dict[Key, Key] = {key: (id(call), key) for c in inner.calls for key in c.outputs}
    keys.update(zip(inner.outputs, call.outputs))
    keys.update(zip(inner.inputs, (leaf.key for leaf in flat)))

    def renamed(leaf: Any) -> Any:
        return Ref(keys.get(leaf.key, leaf.key)) if isinstance(leaf, Ref) else leaf

    return [
        replace(
            c,
            args=keras.tree.map_structure(renamed, c.args),
            kwargs=keras.tree.map_structure(renamed, c.kwargs),
            inputs=tuple(keys.get(key, key) for key in c.inputs),
            outputs=tuple(keys[key] for key in c.outputs),
            stage=call.stage if call.stage is not None else c.stage,
        )
        for c in inner.calls
    ]
