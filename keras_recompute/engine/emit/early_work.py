"""Early work: what a compiler would begin while the section before still runs.

A section reads what the section before made, and may read older values: a slice of the model's
input, a condition that every block reads, the result of an encoder. TensorFlow, and XLA's own
scheduler on a CPU, start work as soon as they can. They would compute products of older values in
front of all sections, and hold the results of all of them. So what a section computes of older
values alone waits for the section before.

What it gains: benchmarks/notes/updates.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tensorflow as tf

from ..graph.dataflow import pick, put, tensor_refs
from ..graph.op_sets import LOOPS, PRODUCTS
from ..graph.target_ops import delay
from ..partition.program import GraphProgram

_WORK = PRODUCTS.union(LOOPS)


def delay_early_work(
    program: GraphProgram, values: Sequence[tf.Tensor], arguments: int, after: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return ``values``, one per port of ``program``; some of them wait until ``after`` is there.

    The first ``arguments`` of the ports are those of the section. The others are weights, which a
    product reads beside them, and need not wait.
    """
    given, target = list(values), program.target
    awaited = [tensor for tensor in after if tensor.dtype.is_floating]
    if not awaited or not target.at("delay"):
        return given
    made = tensor_refs(after)
    old = [number for number in range(arguments) if given[number].ref() not in made]
    early = ports_with_early_work(program, old, range(arguments))
    put(given, early, delay(pick(given, early), target, after=awaited))
    return given


def ports_with_early_work(
    program: GraphProgram, old: Collection[int], arguments: Collection[int]
) -> list[int]:
    """Return the numbers of the ``old`` ports that products and loops follow from.

    A product that also follows from another one of the ``arguments`` is no early work.
    """
    waiting = {t.ref() for n in arguments if n not in old for t in program.ports[n]}
    # The old ports that a tensor follows from.
    origins = {t.ref(): frozenset([n]) for n in old for t in program.ports[n]}
    early: set[int] = set()
    for operation in program.operations:
        read = tensor_refs(operation.inputs)
        results = tensor_refs(operation.outputs)
        if not waiting.isdisjoint(read):
            waiting |= results
            continue
        of_old = frozenset().union(*(origins[ref] for ref in read if ref in origins))
        origins.update(dict.fromkeys(results, of_old))
        if operation.type in _WORK:
            early |= of_old
    return sorted(early)
