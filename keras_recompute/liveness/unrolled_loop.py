"""Unrolling of one loop of a program, with each trip taking its own branches.

In a record the body of a loop counts once. Where trips differ, as in a pipeline, that hides what
runs when. Memory is planned once for the body, so each trip holds at a step what the record says of
that step; only the sequence of steps differs. Nested loops stay as they are: their bodies count
once per trip.

Reads XLA's messages without importing their classes, as ``xla_schedule`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Tuple

from ..errors import ReportError
from .branches import trip_count
from .program import Buffer, Program
from .xla_schedule import Schedule

# The (phase, section) that identifies a branch among those of its loop.
Mark = Tuple[str, str]
_OF_NOTHING: dict[str, Any] = {"phase": None, "section": None, "layer": None}


@dataclass(frozen=True)
class ScheduledStep:
    """The number of a step that runs; ``is_idle`` if its branch is not taken."""

    step: int
    is_idle: bool = False


@dataclass(frozen=True)
class _Branch:
    """Ids of a branching instruction, and of the computations for taken and not taken."""

    instruction: int
    if_taken: int
    if_not: int


def run_order(
    schedule: Schedule, steps: Sequence[Any], turns: Sequence[Collection[Mark]]
) -> list[ScheduledStep]:
    """Return ``steps`` in the order in which they run, those of the loop once per trip.

    ``steps`` are instructions of ``schedule`` in its order. Each of ``turns`` holds the marks of
    the branches that this trip takes; of any other branch the alternative runs. The loop is the one
    whose body has a branch for each mark. Raises ReportError if there is no such loop, or its trip
    count differs.
    """
    marks = frozenset[Mark]().union(*turns)
    loop, branches = _loop_with(schedule, marks)
    if trip_count(loop) != len(turns):
        raise ReportError(
            f"the loop {loop.name!r} has {trip_count(loop)} iterations, not {len(turns)}"
        )

    number_of = {instruction.id: number for number, instruction in enumerate(steps)}

    def steps_in(computation: int) -> set[int]:
        found = set()
        for instruction in _ids_in(schedule, computation):
            if instruction in number_of:
                found.add(number_of[instruction])
        return found

    inside: set[int] = set()
    for computation in loop.called_computation_ids:
        inside |= steps_in(computation)
    first, last = min(inside), max(inside)
    order = list(map(ScheduledStep, range(first)))
    for turn in turns:
        not_run: set[int] = set()
        idle: set[int] = set()
        for mark, branch in branches.items():
            if mark in turn:
                not_run |= steps_in(branch.if_not)
            else:
                # In place of a branch that is not taken, its other computation runs.
                not_run |= steps_in(branch.if_taken)
                idle |= steps_in(branch.if_not)
                idle.add(number_of[branch.instruction])
        for step in range(first, last + 1):
            if step not in not_run:
                order.append(ScheduledStep(step, step in idle))
    order += map(ScheduledStep, range(last + 1, len(steps)))
    return order


def apply_run_order(program: Program, order: Sequence[ScheduledStep]) -> Program:
    """Return ``program`` with its steps in ``order``, in which each may appear several times.

    Storage is held where its steps are. Idle steps belong to no phase, section or layer.
    """
    buffers = []
    for buffer in program.buffers:
        for first, last in _stretches(buffer, order):
            buffers.append(replace(buffer, first_step=first, last_step=last))
    steps = []
    for place in order:
        step = program.steps[place.step]
        steps.append(replace(step, **_OF_NOTHING) if place.is_idle else step)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers))


def _stretches(buffer: Buffer, order: Sequence[ScheduledStep]) -> Iterator[tuple[int, int]]:
    """Yield first and last indices in ``order`` of each unbroken run that holds ``buffer``."""
    for is_held, run in groupby(
        enumerate(order), key=lambda numbered: buffer.is_live_at(numbered[1].step)
    ):
        numbers = [number for number, _ in run]
        if is_held:
            yield numbers[0], numbers[-1]


def _loop_with(schedule: Schedule, marks: Collection[Mark]) -> tuple[Any, dict[Mark, _Branch]]:
    """Return the loop whose body branches for each of ``marks``, and the branch for each."""
    for loop in schedule.order:
        if loop.opcode != "while":
            continue
        body = schedule.computations[loop.called_computation_ids[0]]
        found = _branches_in(body, schedule, marks)
        if marks and found.keys() == set(marks):
            return loop, found
    raise ReportError(
        f"no loop of the program branches for each of {sorted(marks)}, so none can be unrolled"
    )


def _branches_in(body: Any, schedule: Schedule, marks: Collection[Mark]) -> dict[Mark, _Branch]:
    """Return the branches in the ``body`` of a loop that have one of ``marks``."""
    found: dict[Mark, _Branch] = {}
    for instruction in body.instructions:
        if instruction.opcode != "conditional" or len(instruction.called_computation_ids) != 2:
            continue
        first, second = instruction.called_computation_ids
        for if_taken, if_not in ((first, second), (second, first)):
            own = schedule.marks(schedule.computations[if_taken])
            for mark in marks:
                if mark in own:
                    found[mark] = _Branch(instruction.id, if_taken, if_not)
    return found


def _ids_in(schedule: Schedule, computation: int) -> Iterator[int]:
    """Yield the ids of the instructions of ``computation`` and of the loops and branches in it."""
    for instruction in schedule.computations[computation].instructions:
        yield instruction.id
        if instruction.opcode in ("while", "conditional", "call"):
            for called in instruction.called_computation_ids:
                yield from _ids_in(schedule, called)
