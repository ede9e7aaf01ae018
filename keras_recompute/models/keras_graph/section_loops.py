"""Finds consecutive sections that are equal, so that one loop can run them.

Two sections are equal if they call equal operations with the same arguments in the same order,
wired in the same way. They may differ in where they slice their input (``TimeSlice`` layers of
equal length). A ``Level`` says in what operations must be equal: they are the same objects, or
isomorphic (see ``fingerprint``).

Seen from the loop, each value from outside has one role in all sections: carried from the section
before, a slice that moves on by its own length, or shared by all. The stacked weights of isomorphic
layers are one more input, and each section takes its slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import keras
import tensorflow as tf

from ...engine.scan import Carry, Constant, FinalOutput, Request, Role, Scanned, StackedOutput
from ...layers.time_slice import TimeSlice
from .call_graph import Call, Graph, Key, Ref, keys_made, keys_read, operations_of
from .fingerprint import Fingerprint, Fingerprints, Level, calls_key, same_object
from .isomorphic_layers import isomorphic_layers, structural_fingerprint
from .sections import Section


@dataclass(frozen=True, eq=False)
class SectionLoop:
    """Equal sections as one loop.

    Attributes:
        sections: The sections, in running order.
        calls: The calls of the first section, without its slices.
        arguments: The values that the loop is given.
        parameters: The keys under which the calls of a section know them.
        roles: How each argument reaches the sections: carried, sliced or shared.
        returns: The keys of a section's outputs.
        requests: What the loop gives back.
        results: What each of these stands for: one value, or one per section, each with the keys
            under which it is known.
        key: What the sections are equal in.
        isomorphic: For each layer with weights of its own, that layer of every section.
        inner_steps: The steps of ``calls``, where parts of them are loops.
    """

    sections: tuple[Section, ...]
    calls: tuple[Call, ...]
    arguments: tuple[Key, ...]
    parameters: tuple[Key, ...]
    roles: tuple[Role, ...]
    returns: tuple[Key, ...]
    requests: tuple[Request, ...]
    results: tuple[tuple[tuple[Key, ...], ...], ...]
    key: Any
    isomorphic: tuple[tuple[keras.layers.Layer, ...], ...] = ()
    inner_steps: tuple[Any, ...] = ()

    @property
    def recomputed(self) -> bool:
        """Whether the backward pass replays the sections, or reads what each has stored."""
        return self.sections[0].recomputed

    @property
    def graph(self) -> Graph:
        """What one section does."""
        return Graph(self.parameters, self.returns, self.calls)


@dataclass(frozen=True)
class Concatenation:
    """``Concatenate`` after the loop that made some of its inputs has joined these into one."""

    axis: int

    def __call__(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        return parts[0] if len(parts) == 1 else tf.concat(parts, self.axis)


@dataclass(frozen=True)
class _Slot:
    """A value from outside of a section, or a slice of it: ``length`` steps from ``start``."""

    key: Key
    parameter: Key
    start: int | None = None
    length: int | None = None


class _SectionPattern:
    """What a section does, apart from which values it does it to."""

    def __init__(self, section: Section, fingerprint_of: Callable[[Any], Fingerprint]) -> None:
        self.section, self._fingerprint_of = section, fingerprint_of
        slices: dict[Key, Call] = {}
        self.passed_on: dict[Key, Key] = {}
        calls = []
        for call in section.calls:
            if isinstance(call.operation, TimeSlice) and call.inputs[0] in section.inputs:
                slices[call.outputs[0]] = call
            elif call.is_checkpoint_layer:
                # It passes values on. It ends all sections but the last, which is no less equal for
                # that.
                self.passed_on.update(zip(call.outputs, call.inputs))
            else:
                calls.append(call)
        self.calls = tuple(calls)
        self.made = keys_made(calls)
        number: dict[Key, tuple[str, int]] = {}
        for i, key in enumerate(self.made):
            number[key] = ("made", i)
        self.slots: list[_Slot] = []
        for call in self.calls:
            for key in call.inputs:
                if key not in number:
                    number[key] = ("given", len(self.slots))
                    self.slots.append(_slot(key, slices.get(key)))
        self.outputs = section.outputs
        # A slice that is read outside too would have to be made once per section after all.
        self.can_repeat = bool(self.calls) and slices.keys().isdisjoint(section.outputs)
        self.key = calls_key(self.calls, number.__getitem__, fingerprint_of)

    @property
    def operations(self) -> list[Any]:
        """What the calls of the section call, in running order."""
        return operations_of(self.calls)

    def position(self, key: Key) -> int | None:
        """Return the number of ``key`` among the values that the section makes.

        A value behind a checkpoint counts as the one before it.
        """
        key = self.passed_on.get(key, key)
        return self.made.index(key) if key in self.made else None

    def keys_at(self, position: int) -> tuple[Key, ...]:
        """Return the keys under which value number ``position`` is known outside."""
        key = self.made[position]
        keys = [key]
        for after, before in self.passed_on.items():
            if before == key:
                keys.append(after)
        return tuple(keys)

    def with_joined(self, absorbed: set[Key]) -> _SectionPattern:
        """Return the pattern of the section without inputs that an earlier loop ``absorbed``."""
        section = _with_joined(self.section, absorbed)
        return self if section is self.section else _SectionPattern(section, self._fingerprint_of)


def _slot(key: Key, call: Call | None) -> _Slot:
    if call is None:
        return _Slot(key, key)
    start, stop = call.operation.start, call.operation.stop
    return _Slot(call.inputs[0], key, start, stop - start)


def find_loops(
    sections: Sequence[Section],
    graph: Graph,
    *,
    level: Level = Level.SAME_VARIABLES,
    fingerprints: Fingerprints | None = None,
) -> list[Section | SectionLoop]:
    """Return ``sections`` with every two or more equal consecutive ones as a SectionLoop.

    ``level`` says in what they must be equal. ``fingerprints`` may have known ones.
    """
    known = Fingerprints() if fingerprints is None else fingerprints

    def fingerprint_of(operation: Any) -> Fingerprint:
        if level is Level.SAME_VARIABLES:
            return same_object(operation)
        return structural_fingerprint(operation, known)

    waiting = [_SectionPattern(section, fingerprint_of) for section in sections]
    found: list[Section | SectionLoop] = []
    while waiting:
        count, roles = _longest(waiting)
        if count < 2:
            found.append(waiting.pop(0).section)
            continue
        equal_sections, after = waiting[:count], waiting[count:]
        run = _run(equal_sections, roles, after, graph)
        found.append(run)
        # The first value stands for all that the loop has joined into one.
        absorbed: set[Key] = set()
        for request, keys in zip(run.requests, run.results):
            if isinstance(request, StackedOutput) and request.axis is not None:
                absorbed.update(map(itemgetter(0), keys[1:]))
        waiting = [shape.with_joined(absorbed) for shape in after]
    return found


def _with_joined(section: Section, absorbed: set[Key]) -> Section:
    """Return ``section`` with concatenations of the joined value, not of ``absorbed`` inputs."""
    if not absorbed.intersection(section.inputs):
        return section
    calls = []
    for call in section.calls:
        reads_absorbed = bool(absorbed.intersection(call.inputs))
        calls.append(_of_the_whole(call, absorbed) if reads_absorbed else call)
    inputs = _without(section.inputs, absorbed)
    # To put pieces together has no residuals: there is nothing to recompute.
    only_joins = all(isinstance(call.operation, Concatenation) for call in calls)
    recomputed = section.recomputed and not only_joins
    return Section(tuple(calls), inputs, section.outputs, recomputed)


def _without(keys: Sequence[Key], absorbed: set[Key]) -> tuple[Key, ...]:
    return tuple(key for key in keys if key not in absorbed)


def _of_the_whole(call: Call, absorbed: set[Key]) -> Call:
    keys = _without(call.inputs, absorbed)
    arguments = (list(map(Ref, keys)),)
    concatenation = Concatenation(call.operation.axis)
    return Call(concatenation, arguments, {}, keys, call.outputs, call.stage)


def _longest(shapes: Sequence[_SectionPattern]) -> tuple[int, tuple[Role, ...]]:
    """Return how many sections from the first on are equal, and the roles of their slots."""
    roles: tuple[Role, ...] = ()
    count = 1
    while count < len(shapes):
        longer = _roles(shapes[: count + 1])
        if longer is None:
            break
        roles, count = longer, count + 1
    return count, roles


def _roles(shapes: Sequence[_SectionPattern]) -> tuple[Role, ...] | None:
    """Return the role of each slot if all ``shapes`` are equal, else None."""
    head = shapes[0]
    for shape in shapes:
        if shape.section.recomputed != head.section.recomputed or shape.key != head.key:
            return None
        if not shape.can_repeat or len(shape.slots) != len(head.slots):
            return None
    roles = []
    for slot in range(len(head.slots)):
        role = _role(slot, shapes)
        if role is None:
            return None
        roles.append(role)
    return tuple(roles)


def _role(slot: int, shapes: Sequence[_SectionPattern]) -> Role | None:
    slots = [shape.slots[slot] for shape in shapes]
    first = slots[0]
    if all(s.key == first.key for s in slots):
        if first.length is None or first.start is None:
            return Constant() if all(s.length is None for s in slots) else None
        for number, each in enumerate(slots):
            if each.length != first.length or each.start != first.start + number * first.length:
                return None
        return Scanned(axis=1, start=first.start, length=first.length)

    output = shapes[0].position(slots[1].key)
    if output is None or first.length is not None:
        return None
    for before, after in zip(shapes, slots[1:]):
        if before.position(after.key) != output:
            return None
    return Carry(output)


def _run(
    shapes: Sequence[_SectionPattern],
    roles: Sequence[Role],
    after: Sequence[_SectionPattern],
    graph: Graph,
) -> SectionLoop:
    head = shapes[0]
    read_after: list[Call] = []
    for shape in after:
        read_after.extend(shape.section.calls)
    wanted = {*keys_read(read_after), *graph.outputs}

    returned: set[int] = set()  # positions in ``made``
    for role in roles:
        if isinstance(role, Carry):
            returned.add(role.output)
    # The position in ``made``, the axis, and whether only the last is wanted.
    requests: list[tuple[int, int | None, bool]] = []
    results: list[tuple[tuple[Key, ...], ...]] = []
    for position in range(len(head.made)):
        keys = tuple(shape.keys_at(position) for shape in shapes)
        read = list(map(wanted.intersection, keys))
        if not any(read):
            continue
        returned.add(position)
        if not any(read[:-1]):
            requests.append((position, None, True))
            results.append((keys[-1],))
        else:
            requests.append((position, _concatenation_axis(keys, read_after, graph), False))
            results.append(keys)

    positions = sorted(returned)
    # In a loop, numbers count what a section returns, not all that it makes.
    at = {position: i for i, position in enumerate(positions)}
    loop_roles: list[Role] = []
    for role in roles:
        loop_roles.append(Carry(at[role.output]) if isinstance(role, Carry) else role)
    loop_requests: list[Request] = []
    for position, axis, is_last in requests:
        number = at[position]
        loop_requests.append(FinalOutput(number) if is_last else StackedOutput(number, axis))
    sections, operations = [], []
    for shape in shapes:
        sections.append(shape.section)
        operations.append(shape.operations)
    arguments, parameters = [], []
    for slot in head.slots:
        arguments.append(slot.key)
        parameters.append(slot.parameter)
    return SectionLoop(
        sections=tuple(sections),
        calls=head.calls,
        arguments=tuple(arguments),
        parameters=tuple(parameters),
        roles=tuple(loop_roles),
        returns=tuple(map(head.made.__getitem__, positions)),
        requests=tuple(loop_requests),
        results=tuple(results),
        key=head.key,
        isomorphic=isomorphic_layers(operations),
    )


def _concatenation_axis(
    keys: Sequence[Sequence[Key]], calls: Sequence[Call], graph: Graph
) -> int | None:
    """Return the axis along which the values ``keys`` are concatenated by their only reader."""
    names = set(chain.from_iterable(keys))
    readers = [call for call in calls if names.intersection(call.inputs)]
    if len(readers) != 1 or names.intersection(graph.outputs):
        return None
    (reader,) = readers
    if not isinstance(reader.operation, (keras.layers.Concatenate, Concatenation)):
        return None
    if reader.operation.axis < 1:
        return None
    firsts = tuple(map(itemgetter(0), keys))
    if sum(key in names for key in reader.inputs) != len(keys) or firsts[0] not in reader.inputs:
        return None
    begin = reader.inputs.index(firsts[0])
    in_order = reader.inputs[begin : begin + len(keys)] == firsts
    return reader.operation.axis if in_order else None
