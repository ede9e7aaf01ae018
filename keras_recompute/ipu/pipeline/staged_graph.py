"""A model's graph with a pipeline stage for every call, and the graphs of its stages.

Values go from one stage to the next only: a value that a later stage reads passes through the
stages in between. The model's inputs are an exception: every stage reads its microbatch from the
data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import keras

from ...errors import UnsupportedError
from ...models.classes.model import placement_of
from ...models.keras_graph.call_graph import Call, Graph, Key, Ref, keys_read, read_graph
from ...models.keras_graph.submodel_inlining import (
    InputAdapter,
    can_inline,
    inlined_calls,
    masked_values,
    runs_its_graph,
)
from ...seams.keras.graph import Functional, call_nodes, functional_of_sequential, has_call_of
from .stages import Stages, stage_of


def functional_of(model: Any, *, is_training: bool = True, like: Any = None) -> keras.Model | None:
    """Return the functional model that runs when ``model`` is called on ``like``, or None.

    It is the model itself, the functional model inside a sequential one, or the traced ``call`` of
    a class made in the scope.
    """
    if isinstance(model, keras.Sequential):
        return functional_of_sequential(model) if has_call_of(keras.Sequential, model) else None
    if isinstance(model, Functional):
        return model if runs_its_graph(model) else None
    trace = getattr(model, "functional_like", None)
    return trace(like, is_training) if trace is not None else None


def staged_graph(
    functional: keras.Model, stages: Stages = None, *, is_training: bool = True
) -> Graph:
    """Return the graph of a functional model, with stages.

    Nested models that contain stages or checkpoints are inlined. ``stages`` has the stage of each
    call; for a call of a model in several stages it has a tuple of the stages inside. If ``stages``
    is None, they come from ``PipelineStage`` and from the nested models.

    Raises:
        ValueError: If ``stages`` has another number of calls.
        UnsupportedError: If a model that can only run as a whole is in several stages.
    """
    graph, nodes = read_graph(functional, stage_of), call_nodes(functional)
    placement = placement_of(functional)
    if not placement.is_open:
        graph = placement.mark(graph)
    if stages is not None and len(stages) != len(nodes):
        raise ValueError(
            f"{len(stages)} pipeline stages were set in {functional.name!r}, which now has "
            f"{len(nodes)} calls of layers: call set_pipeline_stage_assignment again"
        )
    masked = masked_values(functional)
    calls: list[Call] = []
    ranks = dict(graph.ranks)
    staged_calls = list(graph.calls)
    if stages is not None:
        staged_calls = [replace(call, stage=stage) for call, stage in zip(staged_calls, stages)]
    for call, node in zip(staged_calls, nodes):
        whole, inside, inner = _inside(call, node, stages is None, is_training)
        if inside is None or not _matters(whole, inside):
            calls.append(whole)
        elif not can_inline(call, inner, masked):
            calls.append(_in_one_stage(whole, inside))
        else:
            made_in = _stage_by_key(calls)
            put, ranks_inside = inlined_calls(call, inside, _input_adapter(call, node, inner))
            has_stages = any(c.stage is not None for c in inside.calls)
            if isinstance(put[0].operation, InputAdapter) and has_stages:
                # The inputs are converted in the first stage that has all of them.
                stage_of_inputs = max((made_in.get(key, 0) for key in call.inputs), default=0)
                put[0] = replace(put[0], stage=stage_of_inputs)
            calls += put
            ranks.update(ranks_inside)
    return replace(graph, calls=tuple(calls), ranks=ranks)


def _stage_by_key(calls: Iterable[Call]) -> dict[Key, int]:
    """Return the stage in which each value of ``calls`` is made; 0 without one."""
    found: dict[Key, int] = {}
    for call in calls:
        found.update(dict.fromkeys(call.outputs, call.stage or 0))
    return found


def check_stages(graph: Graph) -> None:
    """Raise ValueError if only some calls have a stage, or one reads a later stage's output."""
    if all(call.stage is None for call in graph.calls):
        return
    for call in graph.calls:
        if call.stage is None:
            raise ValueError(
                f"the call of layer {call.operation.name!r} is in no PipelineStage, but other "
                "calls are: put every call except the inputs in one"
            )
    made_in = _stage_by_key(graph.calls)
    for call in graph.calls:
        if any(made_in.get(key, 0) > (call.stage or 0) for key in call.inputs):
            raise ValueError(
                f"layer {call.operation.name!r} in stage {call.stage} reads an output of a later "
                "stage"
            )


def check_shared_weights(graph: Graph, devices: Sequence[int]) -> None:
    """Raise ValueError for weights that stages on different IPUs share.

    ``devices`` has the IPU of each stage.
    """
    users: dict[int, Call] = {}
    for call in graph.calls:
        for weight in getattr(call.operation, "weights", ()):
            other = users.setdefault(id(weight), call)
            here, there = devices[call.stage or 0], devices[other.stage or 0]
            if here != there:
                raise ValueError(
                    f"layer {call.operation.name!r} is in stage {call.stage} on IPU {here}, and "
                    f"its weights are used in stage {other.stage} on IPU {there}. Give both "
                    "stages one IPU in device_mapping, or use two layers"
                )


def stage_graphs(graph: Graph, count: int) -> tuple[Graph, ...]:
    """Cut ``graph`` into ``count`` stages.

    The outputs of each stage but the last are what it passes to the next.
    """
    made_in = _stage_by_key(graph.calls)
    stages: list[Graph] = []
    received: tuple[Key, ...] = ()
    for s in range(count):
        calls, behind = [], []
        for call in graph.calls:
            stage_of_call = call.stage or 0
            if stage_of_call == s:
                calls.append(call)
            elif stage_of_call > s:
                behind.append(call)
        # The model's outputs are needed after the last stage.
        later = {*graph.outputs, *keys_read(behind)}
        passed_on = tuple(key for key, stage in made_in.items() if stage <= s and key in later)
        outputs = passed_on if s < count - 1 else graph.outputs
        inputs = (*graph.inputs, *received)
        stages.append(replace(graph, inputs=inputs, outputs=outputs, calls=tuple(calls)))
        received = passed_on
    return tuple(stages)


def _inside(
    call: Call, node: Any, is_noted: bool, is_training: bool
) -> tuple[Call, Graph | None, Any]:
    """Return a call without stages of its parts, the graph inside its model, and that model.

    The call keeps one stage or none. The graph has the stages inside, and the model is functional.
    Both are None if the call's operation is no model. ``is_noted`` is whether the call's stage
    comes from ``PipelineStage``.
    """
    stage, model = call.stage, call.operation
    inner = functional_of(
        model, is_training=is_training, like=node.arguments.args[0] if node.arguments.args else None
    )
    whole = replace(call, stage=None) if isinstance(stage, tuple) else call
    if inner is None:
        if isinstance(stage, tuple):
            raise _cannot_be_cut(call)
        return whole, None, None
    if isinstance(stage, tuple):
        return whole, staged_graph(inner, stage, is_training=is_training), inner
    if stage is None and is_noted:
        return (
            whole,
            staged_graph(inner, getattr(model, "assigned_stages", None), is_training=is_training),
            inner,
        )
    graph = staged_graph(inner, is_training=is_training)
    return (
        whole,
        replace(graph, calls=tuple(replace(each, stage=stage) for each in graph.calls)),
        inner,
    )


def _matters(whole: Call, inside: Graph) -> bool:
    """Return whether a call must be inlined: for its stages, or for its checkpoints."""
    return any(c.stage != whole.stage or c.ends_section for c in inside.calls)


def _in_one_stage(whole: Call, inside: Graph) -> Call:
    """Return the call with the one stage of its parts; raise if there are several."""
    stages = {call.stage for call in inside.calls}
    if len(stages) > 1:
        raise _cannot_be_cut(whole)
    return replace(whole, stage=stages.pop())


def _cannot_be_cut(call: Call) -> UnsupportedError:
    """Return the error for a model in several stages that must run as a whole."""
    return UnsupportedError(
        f"the model {call.operation.name!r} is in several pipeline stages, but its masks, "
        "arguments or own call keep its layers from running one by one. Put it in one stage, or "
        "its layers into the outer model"
    )


def _input_adapter(call: Call, node: Any, inner: keras.Model) -> InputAdapter | None:
    """Return the model's conversion of its inputs; None if its layers take them as they are."""
    given, wanted = node.input_tensors, inner.inputs
    # Other structures are flattened by the model before its layers run.
    is_flat = isinstance(call.args[0], Ref) or (
        isinstance(call.args[0], list) and isinstance(inner.input, list)
    )
    # Keras compares and converts inputs by type and rank.
    is_as_wanted = list(map(_type_and_rank, given)) == list(map(_type_and_rank, wanted))
    return None if is_flat and is_as_wanted else InputAdapter(inner)


def _type_and_rank(tensor: keras.KerasTensor) -> tuple[str, int]:
    return tensor.dtype, len(tensor.shape)
