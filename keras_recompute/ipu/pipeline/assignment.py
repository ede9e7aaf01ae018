"""Asking and saying which calls of a model belong to which pipeline stage, after the model was made.

One entry per call of a layer, in the order in which they run; that of a model inside holds those of its own calls. They are
copies: setting them on a model stores stages in that model alone, and the models inside keep what they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import keras

from ...seams.keras.graph import call_nodes, nodes_of_operation, producing_node
from .stages import Stages, assigned_stage, stage_of


@dataclass
class SequentialLayerPipelineStageAssignment:
    """A layer of a sequential model and its stage; set ``pipeline_stage`` to move it."""

    layer: Any
    pipeline_stage: int | None = None
    is_nested_model: ClassVar[bool] = False


@dataclass
class ModelLayerPipelineStageAssignment:
    """A layer that the ``call`` of a model calls, which of its calls it is, and its stage: set ``pipeline_stage``."""

    layer: Any
    node_index: int
    pipeline_stage: int | None = None
    is_nested_model: ClassVar[bool] = False

    @property
    def inbound_layers(self) -> Any:
        """The layers whose outputs this call reads: one, or a list."""
        return _inbound(self.layer, self.node_index)


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """A layer of a functional model, which of its calls it is, what it reads from, and its stage."""


@dataclass
class SequentialNestedModelPipelineStageAssignment:
    """A model in a sequential model, and the entries of its calls, to be moved one by one."""

    nested_model: Any
    pipeline_stage_assignments: list[Any]
    is_nested_model: ClassVar[bool] = True


@dataclass
class NestedModelPipelineStageAssignment:
    """A model that the ``call`` of a model calls, which of its calls it is, and the entries of what it calls itself."""

    nested_model: Any
    node_index: int
    pipeline_stage_assignments: list[Any]
    is_nested_model: ClassVar[bool] = True

    @property
    def inbound_layers(self) -> Any:
        """The layers whose outputs this call reads: one, or a list."""
        return _inbound(self.nested_model, self.node_index)


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """A model in a functional model, which of its calls it is, what it reads from, and the entries of what it calls."""


class Kind(NamedTuple):
    """The classes of a model's entries, for layers and for models in it."""

    of_layers: type
    of_models: type


OF_FUNCTIONAL = Kind(FunctionalLayerPipelineStageAssignment, FunctionalNestedModelPipelineStageAssignment)
OF_SEQUENTIAL = Kind(SequentialLayerPipelineStageAssignment, SequentialNestedModelPipelineStageAssignment)
OF_SUBCLASS = Kind(ModelLayerPipelineStageAssignment, NestedModelPipelineStageAssignment)


class StagedCall(NamedTuple):
    """A call of ``operation``, the stage that ``PipelineStage`` noted, and which of the calls it is, where that is known."""

    operation: Any
    stage: int | None
    number: tuple[int, ...] = ()


def staged_calls(functional: keras.Model) -> list[StagedCall]:
    """Return the calls of a functional model in running order."""
    return [
        StagedCall(node.operation, stage_of(node), (nodes_of_operation(node.operation).index(node),))
        for node in call_nodes(functional)
    ]


def staged_layers(layers: Sequence[Any]) -> list[StagedCall]:
    """Return the calls of the ``layers`` of a sequential model."""
    return [StagedCall(layer, assigned_stage(layer)) for layer in layers]


def entries_of(places: Sequence[StagedCall], stages: Stages, kind: Kind) -> list[Any]:
    """Return an entry for each of ``places``, in ``stages`` or, without, where they are by themselves."""
    found = []
    for number, place in enumerate(places):
        stage = place.stage if stages is None else stages[number]
        if not _is_model(place):
            found.append(kind.of_layers(place.operation, *place.number, stage))
            continue
        if isinstance(stage, tuple):
            inside = place.operation.pipeline_stage_entries(stage)
        else:
            inside = place.operation.pipeline_stage_entries()
            if stage is not None or stages is not None:
                for entry in _leaves(inside):
                    entry.pipeline_stage = stage
        found.append(kind.of_models(place.operation, *place.number, inside))
    return found


def stages_of_entries(places: Sequence[StagedCall], entries: Any, kind: Kind) -> tuple[Any, ...]:
    """Return the stages that ``entries`` say for each of ``places``; raise ValueError if they do not fit."""
    if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, kind) for entry in entries):
        names = " and ".join(each.__name__ for each in kind)
        raise ValueError(f"a list of {names} is needed, as get_pipeline_stage_assignment returns it, not {entries!r}")
    if len(entries) != len(places):
        raise ValueError(f"{len(entries)} pipeline stage assignments were given for {len(places)} calls of layers")
    stages = []
    for place, entry in zip(places, entries):
        named = entry.nested_model if entry.is_nested_model else entry.layer
        if named is not place.operation:
            raise ValueError(
                f"the assignment of {named.name!r} stands where {place.operation.name!r} is expected: keep the order of "
                f"get_pipeline_stage_assignment"
            )
        if entry.is_nested_model:
            stages.append(place.operation.stages_of_entries(entry.pipeline_stage_assignments))
        elif _is_model(place):
            raise ValueError(
                f"the model {named.name!r} needs a {kind.of_models.__name__}, as get_pipeline_stage_assignment returns it, not "
                f"{entry!r}"
            )
        else:
            stages.append(_checked(entry.pipeline_stage, place))
    return tuple(stages)


def stages_of_sequence(places: Sequence[StagedCall], given: Any, kind: Kind) -> tuple[Any, ...]:
    """Return the stages of a sequential model's layers, ``given`` as numbers or entries; a model's is all its calls'.

    They start at 0 and rise by at most one; in models inside, which may have branches, the run finds out. Raises ValueError.
    """
    if not isinstance(given, (list, tuple)) or len(given) != len(places):
        raise ValueError(f"set_pipeline_stage_assignment needs one stage for each of the {len(places)} layers, not {given!r}")
    stages = tuple(
        stages_of_entries([place], [one], kind)[0] if isinstance(one, kind) else _checked(one, place)
        for place, one in zip(places, given)
    )
    is_plain = not any(isinstance(stage, tuple) for stage in stages)
    if stages and is_plain and (stages[0] != 0 or any(not 0 <= b - a <= 1 for a, b in zip(stages, stages[1:]))):
        raise ValueError(f"the stages of a sequential model start at 0 and rise by at most one, unlike {list(stages)}")
    return stages


def print_summary(entries: Sequence[Any], line_length: int | None, print_fn: Callable[[str], Any] | None) -> None:
    """Print a line for each entry, those of a model below a line with its name."""
    say, width = print_fn or print, line_length or 80
    columns = (int(width * 0.5), int(width * 0.3))

    def line(*cells: Any) -> str:
        return "".join(f"{cell!s:<{w}}" for cell, w in zip(cells, (*columns, 0)))[:width]

    def name(operation: Any, entry: Any, depth: int) -> str:
        return "  " * depth + operation.name + (f" ({entry.node_index})" if hasattr(entry, "node_index") else "")

    def say_each(entries: Sequence[Any], depth: int) -> None:
        for entry in entries:
            if entry.is_nested_model:
                say(line(name(entry.nested_model, entry, depth), type(entry.nested_model).__name__, ""))
                say_each(entry.pipeline_stage_assignments, depth + 1)
            else:
                stage = "none" if entry.pipeline_stage is None else entry.pipeline_stage
                say(line(name(entry.layer, entry, depth), type(entry.layer).__name__, stage))

    say("_" * width)
    say(line("Layer (call)", "Type", "Pipeline stage"))
    say("=" * width)
    say_each(entries, 0)
    say("_" * width)


def _checked(stage: Any, place: StagedCall) -> int:
    if type(stage) is not int or stage < 0:
        raise ValueError(
            f"the pipeline stage of layer {place.operation.name!r} must be a whole number from 0 on, not {stage!r}"
        )
    return stage


def _is_model(place: StagedCall) -> bool:
    """Whether the calls inside have entries of their own: those of models made in the scope."""
    return hasattr(place.operation, "pipeline_stage_entries")


def _leaves(entries: Sequence[Any]) -> Iterator[Any]:
    for entry in entries:
        if entry.is_nested_model:
            yield from _leaves(entry.pipeline_stage_assignments)
        else:
            yield entry


def _inbound(operation: Any, index: int) -> Any:
    made_by = [producing_node(t).operation for t in nodes_of_operation(operation)[index].input_tensors]
    return made_by[0] if len(made_by) == 1 else made_by
