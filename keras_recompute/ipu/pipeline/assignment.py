"""Asking and saying which calls of a model belong to which pipeline stage, after the model was made.

One entry per call of a layer, in the order in which they run. ``keras.Sequential`` takes plain numbers, one per layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from ...seams.keras.graph import calls_of, node_of, nodes_made_by
from .stages import assign_stage, stage_of


@dataclass
class _Assignment:
    """A layer and the stage of one of its calls; set ``pipeline_stage`` to move it."""

    layer: Any
    pipeline_stage: int | None = None


@dataclass
class SequentialLayerPipelineStageAssignment(_Assignment):
    """A layer of a sequential model and its stage."""


@dataclass
class ModelLayerPipelineStageAssignment(_Assignment):
    """A layer that the ``call`` of a model calls, which of its calls it is, and its stage."""

    node_index: int = 0


@dataclass
class FunctionalLayerPipelineStageAssignment(_Assignment):
    """A layer of a functional model, which of its calls it is, what it reads from, and its stage."""

    node_index: int = 0

    @property
    def inbound_layers(self) -> Any:
        """The layers whose outputs this call reads: one, or a list."""
        made_by = [node_of(t).operation for t in nodes_made_by(self.layer)[self.node_index].input_tensors]
        return made_by[0] if len(made_by) == 1 else made_by


def assignments(functional: keras.Model, kind: type) -> list[Any]:
    """Return an entry of type ``kind`` for each call of ``functional``."""
    found = []
    for node in calls_of(functional):
        place = {} if kind is SequentialLayerPipelineStageAssignment else {"node_index": _index(node)}
        found.append(kind(node.operation, stage_of(node), **place))
    return found


def assign(functional: keras.Model, entries: Any, kind: type) -> None:
    """Put the calls of ``functional`` into the stages that ``entries`` say; raise ValueError if they do not fit."""
    nodes = calls_of(functional)
    if not isinstance(entries, list) or not all(isinstance(entry, kind) for entry in entries):
        raise ValueError(f"a list of {kind.__name__} is needed, as get_pipeline_stage_assignment returns it, not {entries!r}")
    if len(entries) != len(nodes):
        raise ValueError(f"{len(entries)} pipeline stage assignments were given for {len(nodes)} calls of layers")
    for node, entry in zip(nodes, entries):
        if entry.layer is not node.operation or entry.node_index != _index(node):
            raise ValueError(
                f"the assignment of layer {entry.layer.name!r}, call {entry.node_index}, stands where layer "
                f"{node.operation.name!r}, call {_index(node)}, is expected: keep the order of get_pipeline_stage_assignment"
            )
        require_stage(entry.pipeline_stage, f"layer {entry.layer.name!r}")
    for node, entry in zip(nodes, entries):
        assign_stage(node, entry.pipeline_stage)


def assign_sequence(layers: Sequence[Any], stages: Any) -> None:
    """Put ``layers`` of a sequential model into ``stages``: ints that start at 0 and rise by at most one."""
    if not isinstance(stages, (list, tuple)) or len(stages) != len(layers):
        raise ValueError(f"set_pipeline_stage_assignment needs one stage for each of the {len(layers)} layers, not {stages!r}")
    for layer, stage in zip(layers, stages):
        require_stage(stage, f"layer {layer.name!r}")
    if stages and (stages[0] != 0 or any(not 0 <= b - a <= 1 for a, b in zip(stages, stages[1:]))):
        raise ValueError(f"the stages of a sequential model start at 0 and rise by at most one, unlike {list(stages)}")
    for layer, stage in zip(layers, stages):
        assign_stage(layer, stage)


def require_stage(stage: Any, what: str) -> None:
    """Raise ValueError unless ``stage`` is a whole number from 0 on."""
    if type(stage) is not int or stage < 0:
        raise ValueError(f"the pipeline stage of {what} must be a whole number from 0 on, not {stage!r}")


def print_summary(entries: Sequence[Any], line_length: int | None, print_fn: Callable[[str], Any] | None) -> None:
    """Print a line for each entry."""
    say, width = print_fn or print, line_length or 80
    columns = (int(width * 0.5), int(width * 0.3))

    def line(*cells: Any) -> str:
        return "".join(f"{cell!s:<{w}}" for cell, w in zip(cells, (*columns, 0)))[:width]

    say("_" * width)
    say(line("Layer (call)", "Type", "Pipeline stage"))
    say("=" * width)
    for entry in entries:
        name = entry.layer.name + (f" ({entry.node_index})" if hasattr(entry, "node_index") else "")
        say(line(name, type(entry.layer).__name__, "none" if entry.pipeline_stage is None else entry.pipeline_stage))
    say("_" * width)


def _index(node: Any) -> int:
    return nodes_made_by(node.operation).index(node)
