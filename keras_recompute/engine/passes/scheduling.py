"""Scheduling: the weight gradients of a layer are finished before back-propagation goes on.

For XLA, whose order of a program this leads; without XLA, operations run in about the order in
which they were made. The gradient of a layer's weights reads the gradient of the layer's result,
and its activations. No operation reads it. A compiler that orders a program depth first from its
results, as XLA:CPU does here, puts it last. What all weight gradients read then stays in memory to
the end of the backward pass: twice the activations.

So back-propagation passes a tensor on only once the gradients that do not need it are there. These
tensors are those of the longest path, one at every depth. ``fence.opaque_copies`` ties them to the
gradients, on a condition that no compiler knows, and no value changes. The ties are added to the
joint graph itself, before it is partitioned.

What it gains: benchmarks/notes/residuals.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

import tensorflow as tf

from ...graph_traversal import reachable, topological_order
from ...seams.tensorflow.operations import redirect_readers
from ..graph.dataflow import consumers, kinds, makers, producers, tensor_refs
from ..graph.op_sets import LOOPS, PRODUCTS, VIEWS, known_elements
from ..graph.opaque_values import materialize, opaque_copies
from ..graph.target import Target
from .thresholds import MUCH_LARGER

_SUMS = ("Add", "AddN", "AddV2")
_READING = PRODUCTS.union(_SUMS)
_PARTS = (*VIEWS, "Slice", "Transpose")


def schedule_weight_gradients(
    added: frozenset[tf.Operation],
    incoming: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    target: Target,
) -> None:
    """Order the operations ``added`` to a trace in their graph.

    They lead from ``incoming`` to ``gradients``.
    """
    operations = _leading(added, incoming, gradients)
    if not operations:
        return
    depth: dict[tf.Operation, int] = {}
    for operation in operations:
        depth[operation] = 1 + max((depth.get(op, 0) for op in producers(operation)), default=0)
    path = _longest_path(depth)
    carrying = _ancestors(path[-1], depth)
    largest = max(map(_elements, path))
    awaited: dict[tf.Operation, list[tf.Tensor]] = defaultdict(list)
    for deep, tensors in _finished(operations, depth, carrying, tensor_refs(gradients)).items():
        # path[n] has depth n + 1. What is small is passed on at once: nothing is freed for it. So
        # is what a loop has stored where a tie copies that.
        later = next(
            (
                operation
                for operation in path[deep:]
                if _elements(operation) * MUCH_LARGER >= largest
            ),
            None,
        )
        if later is not None and not (later.type in LOOPS and target.holds_around_loops):
            awaited[later].extend(tensors)
    before = dict(zip(path, [path[0], *path]))
    for operation in operations:
        is_large = _elements(operation) * MUCH_LARGER >= largest
        if (
            is_large
            and operation in carrying
            and operation.type in _SUMS
            and _is_read_again(operation, among=depth)
        ):
            _sum_once(operation, awaited.pop(operation, []), readers=depth)
    for operation, tensors in awaited.items():
        _pass_on_after(operation, tensors, what_they_read=before[operation], readers=depth)


def _finished(
    operations: Iterable[tf.Operation],
    depth: Mapping[tf.Operation, int],
    carrying: Set[tf.Operation],
    results: Set[Any],
) -> dict[int, list[tf.Tensor]]:
    """Return what is finished beside the path of back-propagation, by the depth that it needs.

    A tie leads from a depth to a greater one, so no tie closes a circle.
    """
    needs: dict[tf.Operation, int] = {}
    for operation in operations:
        if operation in carrying:
            needs[operation] = depth[operation]
        else:
            needs[operation] = max(needs.get(op, 0) for op in producers(operation))
    deepest = max(depth.values())
    finished: dict[int, list[tf.Tensor]] = defaultdict(list)
    for operation in operations:
        if operation in carrying or needs[operation] >= deepest - 1:
            continue
        for tensor in operation.outputs:
            # A reader that needs more of the path takes it back there.
            readers = tensor.consumers()
            is_read_later = any(needs.get(op, 0) > needs[operation] for op in readers)
            is_left = is_read_later or tensor.ref() in results
            if is_left and tensor.dtype.is_floating and tensor.shape.num_elements() != 0:
                finished[needs[operation]].append(tensor)
    return finished


def _leading(
    added: frozenset[tf.Operation], incoming: Iterable[tf.Tensor], gradients: Iterable[tf.Tensor]
) -> list[tf.Operation]:
    """Return the ``added`` operations between ``incoming`` and ``gradients``, in order."""
    begin = tensor_refs(incoming)
    ends = list(filter(added.__contains__, makers(gradients)))
    depending: dict[tf.Operation, None] = {}
    for operation in topological_order(
        reversed(ends), lambda op: filter(added.__contains__, reversed(producers(op)))
    ):
        if any(t.ref() in begin or t.op in depending for t in operation.inputs):
            depending[operation] = None
    return list(depending)


def _ancestors(operation: tf.Operation, among: Mapping[tf.Operation, int]) -> set[tf.Operation]:
    return set(reachable([operation], lambda op: filter(among.__contains__, producers(op))))


def _longest_path(depth: Mapping[tf.Operation, int]) -> list[tf.Operation]:
    """Return one operation of each depth, each reading the one before."""
    path = [max(depth, key=depth.__getitem__)]
    while depth[path[-1]] > 1:
        path.append(max((t.op for t in path[-1].inputs if t.op in depth), key=depth.__getitem__))
    return path[::-1]


def _elements(operation: tf.Operation) -> int:
    """Return the elements of the largest result of ``operation``."""
    return max(map(known_elements, operation.outputs), default=0)


def _pass_on_after(
    operation: tf.Operation,
    finished: Sequence[tf.Tensor],
    *,
    what_they_read: tf.Operation,
    readers: Iterable[tf.Operation],
) -> None:
    """Let ``readers`` read the results of ``operation`` only once all of ``finished`` are there.

    Results much larger than what is free by then are left out: they are better made late, as after
    a layer of one unit.
    """
    freed = _elements(what_they_read)
    for result in operation.outputs:
        reading = set(result.consumers()).intersection(readers)
        if (
            not reading
            or not result.dtype.is_floating
            or known_elements(result) > MUCH_LARGER * freed
        ):
            continue
        with tf.name_scope(f"{operation.name}/passed_on/"):
            (passed_on,) = opaque_copies([result], after=finished)
        redirect_readers(passed_on, instead_of=result, readers=reading)


def _is_read_again(operation: tf.Operation, *, among: Collection[tf.Operation]) -> bool:
    """Whether several operations read ``operation``, a sum, and one as a product or sum does.

    A product reads an array. Other readers would add the terms again beside it. And a sum may be a
    term of many more.
    """

    def readers(read: tf.Operation) -> Iterable[tf.Operation]:
        return filter(among.__contains__, consumers(read))

    def readers_of_views(read: tf.Operation) -> Iterable[tf.Operation]:
        return readers(read) if read.type in _PARTS else ()

    (result,) = operation.outputs
    terms = sum(known_elements(t) >= known_elements(result) for t in operation.inputs)
    if terms < 2 or not result.dtype.is_floating or result.shape.num_elements() == 0:
        return False
    first = set(readers(operation))
    return len(first) > 1 and not kinds(reachable(first, readers_of_views)).isdisjoint(_READING)


def _sum_once(
    operation: tf.Operation, finished: Sequence[tf.Tensor], *, readers: Iterable[tf.Operation]
) -> None:
    """Let ``readers`` read a sum of gradients as an array, once all of ``finished`` are there.

    Along the way around residual blocks each sum is a term of the next. A compiler that repeats
    cheap operations where they are read would keep all terms to the end, rather than one sum. A
    branch cannot be repeated.
    """
    (result,) = operation.outputs
    reading = set(result.consumers()).intersection(readers)
    with tf.name_scope(f"{operation.name}/passed_on/"):
        passed_on = materialize(result, finished)
    redirect_readers(passed_on, instead_of=result, readers=reading)
