"""Cuts a model at its checkpoints: outputs of marked calls, and RecomputationCheckpoint layers.

Checkpoints are taken in running order. A call belongs to the section of the first checkpoint that
it leads to. Calls that lead to none come after the last one (but see ``Call.stays_with_producer``).
Values that cross from one section to a later one are kept, whether they go through a checkpoint or
skip past it.

What comes after the last checkpoint is not recomputed, because back-propagation starts there:
replaying it at once saves nothing. A pipeline stage that is not the last has other stages in
between, so its last section is recomputed too. Some calls in it gather values of earlier sections,
such as a concatenation of all outputs. They are split off, so that this section stays equal to
those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .call_graph import Call, Graph, Key, ancestors, checkpoints_in, keys_made, keys_read


@dataclass(frozen=True, eq=False)
class Section:
    """Calls that run together, with the values that they read and hand on.

    Attributes:
        calls: The calls, in running order.
        inputs: Values from outside.
        outputs: Values that are read outside.
        recomputed: Whether the values in between are recomputed.
        escaping: Outputs that are read behind the graph alone. It is not known whether they are
            kept.
        inner_steps: The steps of the section, where parts of it are loops (see
            ``repeated_blocks``).
    """

    calls: tuple[Call, ...]
    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    recomputed: bool
    escaping: frozenset[Key] = frozenset()
    inner_steps: tuple[Any, ...] = ()

    @property
    def graph(self) -> Graph:
        """What the section does."""
        return Graph(self.inputs, self.outputs, self.calls)

    @property
    def kept_by_caller(self) -> tuple[int, ...]:
        """The numbers of the outputs that are always kept until the backward pass.

        These are all but the ``escaping`` ones.
        """
        return tuple(number for number, key in enumerate(self.outputs) if key not in self.escaping)


def as_one_section(graph: Graph) -> tuple[Section, ...]:
    """Return ``graph`` as one section in which nothing is recomputed."""
    return sections_of_groups(graph, [graph.calls])


def sections_of_groups(graph: Graph, groups: Iterable[Sequence[Call]]) -> tuple[Section, ...]:
    """Return ``groups`` of the calls of ``graph`` as sections that are not recomputed.

    The groups are in running order.
    """
    return tuple(_with_borders([(list(calls), False) for calls in groups], graph))


def split_at_checkpoints(
    graph: Graph, *, replays_end: bool = False, keeps_results: bool = True
) -> tuple[Section, ...]:
    """Return the sections of ``graph`` in running order.

    With ``replays_end`` the last one is recomputed too. Without ``keeps_results`` values are not
    kept just because they are gathered with others behind all sections.
    """
    groups = list(_split(graph.calls, is_last=not replays_end))
    sections = _with_borders(groups, graph)
    if not replays_end:
        return tuple(sections)
    # Where there are checkpoints, what gathers is the last group.
    is_gathered = not keeps_results and len(groups) > 1
    read: set[Key] = set()
    for calls, _ in groups[:-1] if is_gathered else groups:
        read.update(keys_read(calls))
    escaping = frozenset({*keys_made(graph.calls), *graph.outputs} - read)
    return tuple(replace(section, escaping=escaping) for section in sections)


def _reads_any(call: Call, producers: Iterable[Call]) -> bool:
    return any(set(call.inputs).intersection(producer.outputs) for producer in producers)


def _split(calls: Sequence[Call], *, is_last: bool) -> Iterable[tuple[list[Call], bool]]:
    read = set(keys_read(calls))
    # A checkpoint on nothing but outputs of the stage has nothing behind it that would need
    # recomputing later.
    checkpoints = [call for call in checkpoints_in(calls) if read.intersection(call.outputs)]
    remaining = list(calls)
    kept: set[Key] = set()
    for checkpoint in checkpoints:
        needed = ancestors(remaining)[remaining.index(checkpoint)]
        group: list[Call] = []
        behind: list[Call] = []
        for number, call in enumerate(remaining):
            is_needed = needed >> number & 1
            if is_needed or (call.stays_with_producer and _reads_any(call, group)):
                group.append(call)
            else:
                behind.append(call)
        remaining = behind
        # A checkpoint on the inputs of the stage has nothing in front of it to recompute.
        yield group, not all(call.is_checkpoint_layer for call in group)
        kept.update(checkpoint.outputs)
    if is_last or not checkpoints:
        yield remaining, not is_last
        return
    # Calls that read values of earlier groups, not kept by a checkpoint, are a group of their own.
    last, gathering = [], []
    tainted = set(keys_made(calls)).difference(kept, keys_made(remaining))
    for call in remaining:
        if tainted.intersection(call.inputs):
            gathering.append(call)
            tainted.update(call.outputs)
        else:
            last.append(call)
    yield last, True
    yield gathering, True


def _with_borders(groups: Iterable[tuple[list[Call], bool]], graph: Graph) -> Iterable[Section]:
    """Add to each group of calls what it reads from before and what is read after it."""
    groups = [(calls, recomputed) for calls, recomputed in groups if calls]
    for number, (calls, recomputed) in enumerate(groups):
        made = keys_made(calls)
        later = set(graph.outputs)
        for after, _ in groups[number + 1 :]:
            later.update(keys_read(after))
        inputs = dict.fromkeys(keys_read(calls))
        for key in made:
            inputs.pop(key, None)
        outputs = [key for key in made if key in later]
        yield Section(tuple(calls), tuple(inputs), tuple(outputs), recomputed)
