"""Where the checkpoints of a model are: calls of its graph, named beside the graph.

The graph of layers holds no checkpoints then, so a model lists the layers that it was made of, in
their order. Its training pass cuts the graph behind the calls.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import keras

from ...seams.keras.graph import nodes_of
from ..keras_graph.call_graph import Graph, Key, read_graph
from ..keras_graph.submodel_inlining import InputAdapter, inline_submodels
from .clone_mapping import left_note

# The note on the outputs of a model under which those built on it find its checkpoints.
ENDS = "ends"


@dataclass(frozen=True)
class CheckpointPlacement:
    """The checkpoints of a functional model.

    Attributes:
        is_open: Whether models inside it are inlined.
        opens_sequential: Whether sequential models inside it are too. In files of 0.3.0 and before
            they are not.
        positions: The calls with a checkpoint on their outputs, counted from 0 in running order.
    """

    is_open: bool = False
    positions: tuple[int, ...] = ()
    opens_sequential: bool = True

    def graph_of(self, model: keras.Model) -> Graph:
        """Return the graph of ``model`` with these calls marked."""
        if not self.is_open:
            return self.mark(read_graph(model))
        return self.mark(inline_submodels(model, opens_sequential=self.opens_sequential))

    def mark(self, graph: Graph) -> Graph:
        """Return ``graph``, in which positions are counted, with these calls marked."""
        calls = list(graph.calls)
        for number in self.positions:
            calls[number] = replace(calls[number], is_marked=True)
        return replace(graph, calls=tuple(calls))

    def ends(self, model: keras.Model) -> frozenset[Key]:
        """Return the values of ``model`` that are its checkpoints."""
        ends: set[Key] = set()
        for call in self.graph_of(model).calls if self.positions else ():
            if call.is_marked:
                ends.update(call.outputs)
        return frozenset(ends)

    def extended(
        self, model: keras.Model, positions: Collection[int], *, is_open: bool
    ) -> CheckpointPlacement:
        """Return the placement with checkpoints at ``positions`` added.

        They are counted with models inside inlined where ``is_open``.
        """
        more = CheckpointPlacement(is_open, tuple(positions))
        ends = self.ends(model) | more.ends(model)
        return placement_of_ends(model, ends, is_open=is_open or self.is_open)


def placement_of_ends(model: keras.Model, ends: Set[Key], *, is_open: bool) -> CheckpointPlacement:
    """Return the placement in which the values ``ends`` are the checkpoints of ``model``.

    A value that a model inside makes counts as made by a layer of it where ``is_open``.
    """
    calls = CheckpointPlacement(is_open).graph_of(model).calls
    is_inlined = any(isinstance(call.operation, InputAdapter) for call in calls)
    positions = [n for n, call in enumerate(calls) if not ends.isdisjoint(call.outputs)]
    return CheckpointPlacement(is_inlined, tuple(positions))


def inherited_placement(model: keras.Model) -> CheckpointPlacement:
    """Return the checkpoints of the models on whose outputs ``model`` is built, such as a head."""
    is_open = False
    ends: set[Key] = set()
    for node in nodes_of(model):
        for tensor in node.outputs:
            placement_and_ends = left_note(tensor, ENDS)
            if placement_and_ends is not None:
                is_open |= placement_and_ends[0]
                ends |= placement_and_ends[1]
    return placement_of_ends(model, ends, is_open=is_open) if ends else CheckpointPlacement()


def placement_of_rounds(
    is_open: bool, checkpoints: Sequence[Sequence[int]], *, opens_sequential: bool
) -> CheckpointPlacement:
    """Return a placement as it is saved: ``checkpoints`` are rounds of positions.

    Up to 0.2.0 there were several where checkpoints were added to a model that had some. Each of
    these counted as a call in the next round.
    """
    ends: list[int] = []
    for positions in checkpoints:
        found = set(ends)
        for position in positions:
            earlier = [n for n, end in enumerate(ends) if end + n + 1 <= position]
            found.add(position - len(earlier))
        ends = sorted(found)
    return CheckpointPlacement(is_open, tuple(ends), opens_sequential)


def as_rounds(placement: CheckpointPlacement) -> dict[str, Any]:
    """Return ``placement`` as it is saved; nothing of one without checkpoints."""
    if not placement.positions:
        return {}
    return {
        "is_open": placement.is_open,
        "opens_sequential": placement.opens_sequential,
        "checkpoints": [list(placement.positions)],
    }
