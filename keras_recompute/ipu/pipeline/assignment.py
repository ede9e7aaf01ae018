"""Reading and setting the pipeline stages of a model's calls after it was constructed.

There is one entry per layer call, in running order. The entry of a nested model holds the entries
of its own calls. Entries are copies: setting them on a model stores stages in that model alone, and
nested models keep theirs.
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
    """A layer that the ``call`` of a model calls, the number of the call, and its stage.

    Set ``pipeline_stage`` to move it.
    """

    layer: Any
    node_index: int
    pipeline_stage: int | None = None
    is_nested_model: ClassVar[bool] = False

    @property
    def inbound_layers(self) -> Any:
        """The layer whose output this call reads, or a list of them."""
        return _inbound(self.layer, self.node_index)


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """A layer of a functional model, the number of the call, its inputs, and its stage."""


@dataclass
class SequentialNestedModelPipelineStageAssignment:
    """A model in a sequential model, and the entries of its calls."""

    nested_model: Any
    pipeline_stage_assignments: list[Any]
    is_nested_model: ClassVar[bool] = True


@dataclass
class NestedModelPipelineStageAssignment:
    """A model that the ``call`` of a model calls, the number of the call, and its entries."""

    nested_model: Any
    node_index: int
    pipeline_stage_assignments: list[Any]
    is_nested_model: ClassVar[bool] = True

    @property
    def inbound_layers(self) -> Any:
        """The layer whose output this call reads, or a list of them."""
        return _inbound(self.nested_model, self.node_index)


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """A model in a functional model, the number of the call, its inputs, and its entries."""


class Kind(NamedTuple):
    """The classes of a model's entries: for layers and for nested models."""

    of_layers: type
    of_models: type


OF_FUNCTIONAL = Kind(
    FunctionalLayerPipelineStageAssignment, FunctionalNestedModelPipelineStageAssignment
)
OF_SEQUENTIAL = Kind(
    SequentialLayerPipelineStageAssignment, SequentialNestedModelPipelineStageAssignment
)
OF_SUBCLASS = Kind(ModelLayerPipelineStageAssignment, NestedModelPipelineStageAssignment)


class StagedCall(NamedTuple):
    """A call of ``operation`` with its stage from ``PipelineStage``, and its number if known."""

    operation: Any
    stage: int | None
    number: tuple[int, ...] = ()


def staged_calls(functional: keras.Model) -> list[StagedCall]:
    """Return the calls of a functional model in running order."""
    calls = []
    for node in call_nodes(functional):
        number = nodes_of_operation(node.operation).index(node)
        calls.append(StagedCall(node.operation, stage_of(node), (number,)))
    return calls


def staged_layers(layers: Sequence[Any]) -> list[StagedCall]:
    """Return the calls of the ``layers`` of a sequential model."""
    return [StagedCall(layer, assigned_stage(layer)) for layer in layers]


def entries_of(places: Sequence[StagedCall], stages: Stages, kind: Kind) -> list[Any]:
    """Return an entry for each of ``places``, with ``stages`` or, if None, their own stages."""
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
    """Return the stages in ``entries`` for ``places``; raise ValueError if they do not match."""
    if not isinstance(entries, (list, tuple)) or not all(
        isinstance(entry, kind) for entry in entries
    ):
        names = " and ".join(each.__name__ for each in kind)
        raise ValueError(
            f"{entries!r} is not a list of {names}: give the list that "
            "get_pipeline_stage_assignment returns"
        )
    if len(entries) != len(places):
        raise ValueError(
            f"{len(entries)} pipeline stage assignments were given for {len(places)} calls of "
            "layers: give one for each"
        )
    stages = []
    for place, entry in zip(places, entries):
        named = entry.nested_model if entry.is_nested_model else entry.layer
        if named is not place.operation:
            raise ValueError(
                f"the assignment of {named.name!r} is in the place of {place.operation.name!r}: "
                "keep the order of get_pipeline_stage_assignment"
            )
        if entry.is_nested_model:
            stages.append(place.operation.stages_of_entries(entry.pipeline_stage_assignments))
        elif _is_model(place):
            raise ValueError(
                f"the model {named.name!r} needs a {kind.of_models.__name__}, as "
                f"get_pipeline_stage_assignment returns it, not {entry!r}"
            )
        else:
            stages.append(_checked(entry.pipeline_stage, place))
    return tuple(stages)


def stages_of_sequence(places: Sequence[StagedCall], given: Any, kind: Kind) -> tuple[Any, ...]:
    """Return the stages of a sequential model's layers, ``given`` as numbers or entries.

    The number of a nested model applies to all its calls. Numbers start at 0 and rise by at most
    one. Nested models may have branches, so their stages are checked when the model runs. Raises
    ValueError.
    """
    if not isinstance(given, (list, tuple)) or len(given) != len(places):
        raise ValueError(
            f"set_pipeline_stage_assignment needs one stage for each of the {len(places)} layers, "
            f"not {given!r}"
        )
    stages: list[Any] = []
    for place, one in zip(places, given):
        if isinstance(one, kind):
            stages += stages_of_entries([place], [one], kind)
        else:
            stages.append(_checked(one, place))
    has_stages_inside = any(isinstance(stage, tuple) for stage in stages)
    if not has_stages_inside and not _rise_from_0(stages):
        raise ValueError(
            f"the stages of a sequential model start at 0 and rise by at most one, unlike {stages}"
        )
    return tuple(stages)


def _rise_from_0(stages: Sequence[int]) -> bool:
    """Whether ``stages`` start at 0 and rise by at most one."""
    if stages and stages[0] != 0:
        return False
    return all(0 <= after - before <= 1 for before, after in zip(stages, stages[1:]))


def print_summary(
    entries: Sequence[Any], line_length: int | None, print_fn: Callable[[str], Any] | None
) -> None:
    """Print a line for each entry; the entries of a model follow a line with its name."""
    say, width = print_fn or print, line_length or 80
    columns = (int(width * 0.5), int(width * 0.3))

    def line(*cells: Any) -> str:
        return "".join(f"{cell!s:<{w}}" for cell, w in zip(cells, (*columns, 0)))[:width]

    def name(operation: Any, entry: Any, depth: int) -> str:
        return (
            "  " * depth
            + operation.name
            + (f" ({entry.node_index})" if hasattr(entry, "node_index") else "")
        )

    def say_each(entries: Sequence[Any], depth: int) -> None:
        for entry in entries:
            if entry.is_nested_model:
                say(
                    line(
                        name(entry.nested_model, entry, depth),
                        type(entry.nested_model).__name__,
                        "",
                    )
                )
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
    """Return ``stage``; raise ValueError unless it is an int from 0 on."""
    if type(stage) is not int or stage < 0:
        raise ValueError(
            f"the pipeline stage of layer {place.operation.name!r} must be a whole number from 0 "
            f"on, not {stage!r}"
        )
    return stage


def _is_model(place: StagedCall) -> bool:
    """Return whether the operation is a model made in the scope, whose calls have entries."""
    return hasattr(place.operation, "pipeline_stage_entries")


def _leaves(entries: Sequence[Any]) -> Iterator[Any]:
    """Yield the entries of layers, also in nested models."""
    for entry in entries:
        if entry.is_nested_model:
            yield from _leaves(entry.pipeline_stage_assignments)
        else:
            yield entry


def _inbound(operation: Any, index: int) -> Any:
    """Return the producers of the inputs of call ``index``: one, or a list."""
    made_by = []
    for tensor in nodes_of_operation(operation)[index].input_tensors:
        made_by.append(producing_node(tensor).operation)
    return made_by[0] if len(made_by) == 1 else made_by
