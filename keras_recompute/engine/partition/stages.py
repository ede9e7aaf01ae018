"""The stages of a backward program: programs one after the other, and what keeps them apart.

Where two programs meet, a compiler sees through: it makes equal values once, and keeps them for
both. A barrier prevents it. Passes for a compiler split the last stage where that takes less
memory; without them there is one stage.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from ...seams.tensorflow.xla import xla_optimization_barrier
from ..capture.trace import Port
from ..graph.dataflow import map_present, present, tensor_refs
from ..graph.op_sets import CHEAP, ELEMENTWISE, PRODUCTS, SLOPES, known_elements
from ..graph.opaque_values import write_with_late_copies
from ..graph.target_ops import fenced
from .program import GraphProgram
from .renames import Renames

_FUSED = CHEAP | ELEMENTWISE | SLOPES


class Barrier(enum.Enum):
    """What keeps a stage apart from others."""

    NONE = enum.auto()
    # The fence of the section stands behind the stage, which is in one of its own.
    SECTION_FENCE = enum.auto()
    # The later stages are in a branch, which begins once the stage has its results.
    BRANCH = enum.auto()
    # The later stages read opaque copies of its results.
    COPIED_RESULTS = enum.auto()
    # The stage itself reads opaque copies.
    COPIED_INPUTS = enum.auto()


@dataclass(frozen=True, eq=False)
class Stage:
    """A program whose ports are ports of the backward program, or results of earlier stages.

    ``awaited`` has, for each copied result, the number of a result of the last stage: the gradient
    that it is first used with, for which its copy waits. If it is None, the copy waits for
    ``after``, which later stages are given.
    """

    program: GraphProgram
    barrier: Barrier = Barrier.NONE
    awaited: tuple[int | None, ...] = ()
    after: tuple[tf.Tensor, ...] = ()

    def rebound_to(self, handles: Mapping[int, tf.Tensor], renames: Renames) -> Stage:
        """Do what ``GraphProgram.rebound_to`` does for the stage."""
        return replace(self, program=self.program.rebound_to(handles, renames))


def write_stages(
    stages: Sequence[Stage],
    ports: Sequence[Port],
    values: Sequence[tf.Tensor],
    *,
    like: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Write ``stages`` into the default graph, and return the results of the last.

    ``values`` has one value for each of ``ports``. ``like`` are tensors of the types and shapes of
    the results, if one of the stages is before a branch.
    """
    stage, *later = stages
    program, barrier = stage.program, stage.barrier
    known: dict[Any, tf.Tensor] = {}
    for port, value in zip(ports, values):
        known.update(dict.fromkeys(tensor_refs(port), value))
    given = [known[port[0].ref()] if port else None for port in program.ports]
    if barrier is Barrier.COPIED_INPUTS:
        # One barrier each: what passes one barrier waits for all that does.
        given = [xla_optimization_barrier([value])[0] for value in given]
    made = program.write(given)
    if not later:
        return made

    def go_on(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return write_stages(later, [*ports, *zip(program.outputs)], values, like=like)

    if barrier is Barrier.BRANCH:
        return fenced(go_on, [*values, *made], after=made, like=like, target=program.target)
    if barrier is Barrier.COPIED_RESULTS:
        return write_with_late_copies(
            lambda copies: go_on([*values, *copies]),
            made,
            awaited=stage.awaited,
            after=[known[tensor.ref()] for tensor in stage.after],
        )
    return go_on([*values, *made])


def with_awaited(
    program: GraphProgram, copied: Sequence[int], incoming: Sequence[int]
) -> tuple[GraphProgram, tuple[int | None, ...]]:
    """Return ``program`` with the gradients that opaque copies wait for, and their numbers.

    They are behind its outputs. ``copied`` and ``incoming`` are the numbers of the ports that are
    copied, and of those for incoming gradients. The number is None for a copy that waits for none.
    """
    if not program.target.starts_early:
        return program, (None,) * len(copied)
    awaited = first_gradients(program, copied, incoming)
    added = list({t.ref(): t for t in present(awaited)}.values())
    number_of = {t.ref(): n for n, t in enumerate(added, len(program.outputs))}
    numbers = map_present(lambda t: number_of[t.ref()], awaited)
    return replace(program, outputs=(*program.outputs, *added)), tuple(numbers)


def first_gradients(
    program: GraphProgram, numbers: Sequence[int], incoming: Sequence[int]
) -> list[tf.Tensor | None]:
    """Return, for each port with one of ``numbers``, the gradient that it is first used with.

    A port is used by what reads it or a value computed from it. ``incoming`` are the numbers of
    the ports for incoming gradients. None where the gradient follows from these by arithmetic.
    A returned gradient is an array: an operand of a product, or else the array that it follows
    from by arithmetic, since a compiler repeats arithmetic where it is read. The gradient cannot
    depend on the port within ``program``, as an earlier operation would have used both.
    """
    # Of each gradient, the arrays that it follows from by arithmetic.
    arrays: dict[object, list[tf.Tensor]] = {
        t.ref(): [] for number in incoming for t in program.ports[number]
    }
    # Of each tensor that depends on no gradient: the ports that it follows from, as bits.
    origins = {t.ref(): 1 << n for n, number in enumerate(numbers) for t in program.ports[number]}
    found: list[tf.Tensor | None] = [None] * len(numbers)
    waiting = (1 << len(numbers)) - 1
    for operation in program.operations:
        inputs = program.inputs_of(operation)
        origin = functools.reduce(operator.or_, (origins.get(t.ref(), 0) for t in inputs), 0)
        partners = [t for t in inputs if t.ref() in arrays]
        if partners:
            behind = [array for t in partners for array in arrays[t.ref()]]
            if operation.type in PRODUCTS and behind:
                behind = partners
            largest = max(behind, key=known_elements, default=None)
            for number in range(len(numbers)):
                if origin & waiting & 1 << number:
                    found[number] = largest
            waiting &= ~origin
            follows = [] if largest is None else [largest]
            for made in operation.outputs:
                arrays[made.ref()] = follows if operation.type in _FUSED else [made]
        elif origin:
            origins.update((t.ref(), origin) for t in operation.outputs)
    return found
