"""Early work: what a compiler would begin while the checkpointed call before still runs.

A call reads what follows from the results of the call before, and may read older values: a slice
of the model's input, a condition that every block reads, the result of an encoder. TensorFlow, and
XLA's own scheduler on a CPU, start work as soon as they can. They would compute products of older
values in front of all calls, and hold the results of all of them. XLA on a GPU joins products that
read one array into a single one, with the same effect. So what a call computes of older values
alone waits for the call before.

What it gains: benchmarks/notes/updates.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import tensorflow as tf

from ...graph_traversal import reachable
from ...seams.tensorflow.operations import number_in_graph
from ..graph.dataflow import makers, operations_before, pick, put, tensor_refs
from ..graph.graph_state import kept_with
from ..graph.op_sets import LOOPS, PRODUCTS, known_elements
from ..graph.target_ops import delay
from ..partition.program import GraphProgram

_LAST_CALL = "_keras_recompute_last_call"


def note_call(results: Iterable[tf.Tensor]) -> None:
    """Note the ``results`` of a call that was written into the graph under construction."""
    kept_with(tf.compat.v1.get_default_graph(), _LAST_CALL, list)[:] = makers(results)


def delay_early_work(
    program: GraphProgram, values: Sequence[tf.Tensor], weights: Collection[int]
) -> list[tf.Tensor]:
    """Return ``values``, one per port of ``program``; older ones wait where products read them.

    They wait for the values that follow from the results of the call before. ``weights`` are the
    numbers of ports that a product reads beside a value, and that need not wait themselves.
    """
    given, target = list(values), program.target
    before = kept_with(tf.compat.v1.get_default_graph(), _LAST_CALL, list)
    if not before or not target.at("delay"):
        return given
    first = min(map(number_in_graph, before))
    following: list[int] = []
    older: list[int] = []
    for number, value in enumerate(given):
        if number not in weights:
            (following if _follows(value.op, before, first) else older).append(number)
    awaited = [value for value in pick(given, following) if value.dtype.is_floating]
    if awaited and older:
        early = ports_with_early_work(program, older, following)
        put(given, early, delay(pick(given, early), target, after=awaited))
    return given


def _follows(operation: tf.Operation, before: Collection[tf.Operation], first: int) -> bool:
    """Whether ``operation`` is one of ``before``, or reads what follows from them.

    The earliest of them has the number ``first`` in their graph.
    """

    def no_older(operation: tf.Operation) -> list[tf.Operation]:
        return [op for op in operations_before(operation) if number_in_graph(op) >= first]

    return not reachable([operation], no_older).keys().isdisjoint(before)


def ports_with_early_work(
    program: GraphProgram, older: Iterable[int], following: Iterable[int]
) -> list[int]:
    """Return the numbers of the ``older`` ports whose products could run ahead.

    These are products, and loops, which read nothing of the ports that are ``following``, and whose
    result is no smaller than what they read.
    """
    waiting = {t.ref() for n in following for t in program.ports[n]}
    # The older ports that a tensor follows from.
    origins = {t.ref(): frozenset([n]) for n in older for t in program.ports[n]}
    early: set[int] = set()
    for operation in program.operations:
        results = tensor_refs(operation.outputs)
        if not waiting.isdisjoint(tensor_refs(operation.inputs)):
            waiting |= results
            continue
        read = [tensor for tensor in operation.inputs if tensor.ref() in origins]
        if not read:
            continue
        of_older: frozenset[int] = frozenset().union(*(origins[tensor.ref()] for tensor in read))
        origins.update(dict.fromkeys(results, of_older))
        if operation.type in LOOPS or (operation.type in PRODUCTS and _is_grown(operation, read)):
            early |= of_older
    return sorted(early)


def _is_grown(operation: tf.Operation, read: Iterable[tf.Tensor]) -> bool:
    return known_elements(operation.outputs[0]) >= min(map(known_elements, read))
