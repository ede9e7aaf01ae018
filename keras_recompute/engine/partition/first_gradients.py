"""The gradient that each value is first used with in a backward program.

An opaque copy of the value can wait for that gradient.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from ..graph.dataflow import map_present, present
from ..graph.op_sets import CHEAP, ELEMENTWISE, PRODUCTS, SLOPES, known_elements
from .program import GraphProgram

_FUSED = CHEAP | ELEMENTWISE | SLOPES


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


def with_outputs(
    program: GraphProgram, tensors: Sequence[tf.Tensor | None]
) -> tuple[GraphProgram, tuple[int | None, ...]]:
    """Return ``program`` with ``tensors`` behind its outputs, and the number of each there.

    None stays None. A tensor that is given several times is one output.
    """
    added = list({t.ref(): t for t in present(tensors)}.values())
    if not added:
        return program, (None,) * len(tensors)
    with_added = replace(program, outputs=(*program.outputs, *added))
    number_of = {t.ref(): n for n, t in enumerate(added, len(program.outputs))}
    return with_added, tuple(map_present(lambda t: number_of[t.ref()], tensors))
