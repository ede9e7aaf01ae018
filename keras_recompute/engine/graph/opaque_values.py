"""Opaque values: what a compiler cannot know, and therefore neither merges, moves nor folds.

A scalar that is always False, and that no compiler can know to be, selects between a value and a
number that changes nothing. So a copy of a tensor is no longer equal to it in the compiler's eyes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import tensorflow as tf

from ...backends import GPU, TPU, backend_now
from ...graph_traversal import reachable, topological_order
from ...seams.tensorflow.operations import redirect_readers
from ...seams.tensorflow.vectorized_map import is_in_vectorized_body
from ...seams.tensorflow.xla import xla_optimization_barrier
from .dataflow import makers, operations_before, pick, present, put
from .graph_constants import constant, memoized_op
from .graph_state import kept_with
from .op_sets import HANDS_ON

# A quiet NaN whose payload no floating-point unit generates (they generate a zero payload or pass
# one on).
_NEVER = 0x7FD5_AA5A
_DECIDED = "_keras_recompute_decided"

Tensors = Sequence[tf.Tensor]


def opaque_false(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return a scalar that is False, computed so that no compiler can know it.

    It is computed from the first element of each of ``tensors``, by few operations, since there are
    many fences: a sum keeps the bits of a NaN among its terms, or is another NaN. Inside a branch
    on the same ``tensors`` it is the predicate of that branch. Computed again there, it would be a
    part of every kernel that selects by it, and no two of these would be equal.
    """
    graph, here = tensors[0].graph, tf.compat.v1.get_default_graph()
    known = kept_with(graph, _DECIDED)
    key = tuple(t.ref() for t in tensors)
    if key in known:
        return known[key]
    firsts = list(map(first_element, tensors))
    total = firsts[0] if len(firsts) == 1 else tf.add_n(firsts)
    found = tf.equal(tf.bitcast(total, tf.int32), constant(_NEVER))
    if graph is here and backend_now() != TPU:
        known[key] = found
    return found


def first_element(tensor: tf.Tensor) -> tf.Tensor:
    """Return the first element of ``tensor`` as a float32, ``()``; zero if it is empty."""
    rank = tensor.shape.rank
    if rank == 0:
        return tf.cast(tensor, tf.float32)
    if tensor.shape.is_fully_defined():
        first, one = constant((0,) * rank), constant((1,) * rank)
        found = tf.raw_ops.StridedSlice(
            input=tensor, begin=first, end=one, strides=one, shrink_axis_mask=2**rank - 1
        )
        return tf.cast(found, tf.float32)
    if rank is None:
        found = tf.reshape(tensor, [-1])[:1]
    else:
        found = tf.slice(tensor, constant((0,) * rank), tf.minimum(tf.shape(tensor), 1))
    return tf.reduce_sum(tf.cast(found, tf.float32))


def with_elements(tensors: Tensors) -> list[tf.Tensor]:
    """Return the ``tensors`` that can have a first element: no lists, handles or empty tensors."""
    return [t for t in tensors if may_pass(t) and t.shape.num_elements() != 0]


def opaque_copies(tensors: Tensors, after: Tensors) -> list[tf.Tensor]:
    """Return copies of ``tensors`` that XLA cannot know to be equal to them.

    They are made only once every tensor of ``after`` is there. A hidden zero is added to each
    element; on a TPU it is selected on a condition that is never met, and on a GPU it comes from
    behind a barrier. Whole numbers stay: they may be sizes, which XLA must know.
    """
    tokens = with_elements(after)
    if not tokens or is_vectorized():
        return list(tensors)
    results = list(tensors)
    numbers = [n for n, tensor in enumerate(tensors) if tensor.dtype.is_floating]
    if backend_now() == GPU:
        # The tokens have no reader behind the barrier, and XLA removes them. On a GPU these copies
        # need not wait; it is enough that XLA cannot merge them with the originals.
        passed, _ = pass_barrier(pick(tensors, numbers), tokens)
        put(results, numbers, passed)
        return results
    is_never = opaque_false(tokens)
    for number in numbers:
        tensor = results[number]
        if backend_now() == TPU:
            zero = memoized_op(tf.zeros, (), tensor.dtype)
            results[number] = tf.where(is_never, zero, tensor)
        else:
            results[number] = memoized_op(opaque_negative_zero, is_never, tensor.dtype) + tensor
    return results


def write_with_late_copies(
    write: Callable[[Tensors], list[tf.Tensor]],
    values: Tensors,
    *,
    awaited: Sequence[int | None],
    after: Tensors,
) -> list[tf.Tensor]:
    """Return ``write(copies)``, where ``copies`` are opaque copies of ``values``.

    ``awaited`` has, for each copy, the number of the result that it waits for. If it is None, the
    copy waits for ``after``. XLA's own scheduler on a CPU starts work as soon as it can, and would
    make all copies of a section at once.
    """
    graph = tf.compat.v1.get_default_graph()
    waits = bool(present(awaited))
    older = frozenset(graph.get_operations() if waits else ())
    early = [value for value, number in zip(values, awaited) if number is None]
    made = iter(opaque_copies(early, after))
    copies = [next(made) if n is None else tf.identity(v) for v, n in zip(values, awaited)]
    results = write(copies)
    waited_for = {n: results[number] for n, number in enumerate(awaited) if number is not None}
    numbers = {copies[n].op: n for n in waited_for}
    read = _copies_read(numbers, makers(waited_for.values()), older)
    tied: dict[int, Set[int]] = {}
    for n, result in waited_for.items():
        # In a higher derivative the gradient may depend on the copy by way of another pass.
        is_cyclic = n in reachable(read[result.op], lambda other: tied.get(other, ()))
        if not is_cyclic:
            tied[n] = read[result.op]
        (late,) = opaque_copies([values[n]], after=after if is_cyclic else [result])
        redirect_readers(late, instead_of=copies[n], readers=copies[n].consumers())
    return results


def _copies_read(
    numbers: Mapping[tf.Operation, int], ends: Iterable[tf.Operation], older: Set[tf.Operation]
) -> dict[tf.Operation, frozenset[int]]:
    """Return the ``numbers`` of the copies that each operation up to ``ends`` depends on.

    What is ``older`` depends on none.
    """

    def newer_before(operation: tf.Operation) -> list[tf.Operation]:
        return list(itertools.filterfalse(older.__contains__, operations_before(operation)))

    read: dict[tf.Operation, frozenset[int]] = {}
    for operation in topological_order(ends, newer_before):
        own = [numbers[operation]] if operation in numbers else []
        read[operation] = frozenset(own).union(*map(read.__getitem__, newer_before(operation)))
    return read


def opaque_negative_zero(is_never: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return -0.0, the additive identity, selected by an opaque predicate.

    So XLA cannot fold ``x + -0.0`` into ``x``. A selection for each element instead would take
    XLA:CPU longer to compile: LLVM writes such loops twice, once for each choice.
    """
    return tf.where(is_never, memoized_op(tf.ones, (), dtype), memoized_op(_negative_zero, dtype))


def _negative_zero(dtype: tf.DType) -> tf.Tensor:
    # Not by `constant`: as a key -0.0 equals 0.0.
    return tf.constant(-0.0, dtype)


def pass_barrier(tensors: Tensors, after: Tensors) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Return ``tensors`` once every tensor of ``after`` is there, and ``after``.

    XLA cannot tell that they are unchanged. It removes tensors of ``after`` without a reader.
    """
    numbers = [n for n, tensor in enumerate(tensors) if may_pass(tensor)]
    passed = xla_optimization_barrier([*pick(tensors, numbers), *after])
    results = list(tensors)
    put(results, numbers, passed)
    return results, list(passed[len(numbers) :])


def may_pass(tensor: tf.Tensor) -> bool:
    """Whether a barrier or a branch can hand ``tensor`` on: neither a handle nor a list."""
    return tensor.dtype not in (tf.variant, tf.resource)


def materialize(
    tensor: tf.Tensor, after: Tensors = (), permutation: tuple[int, ...] | None = None
) -> tf.Tensor:
    """Return ``tensor`` as an array that XLA computes only once and keeps.

    It is computed once every tensor of ``after`` is there, with its axes in the order of
    ``permutation``. It comes from a branch, which no compiler repeats where it is read, or from
    behind a barrier. Branches of one shape share their functions.
    """
    tokens = with_elements((tensor, *after))
    if not tokens or is_vectorized():
        return _permute(permutation)(tensor)
    if backend_now() == GPU:
        passed, _ = pass_barrier([_permute(permutation)(tensor)], after)
        return passed[0]
    # The permutation stands in the branch: before it, its result would be one more array.
    bodies = _permute(permutation), _permute_negative(permutation)
    permuted, negated = branches(bodies, ((tensor.shape, tensor.dtype),))
    (materialized,) = tf.raw_ops.StatelessIf(
        cond=opaque_false(tokens),
        input=[tensor],
        Tout=[tensor.dtype],
        then_branch=negated,
        else_branch=permuted,
        output_shapes=[permuted.outputs[0].shape],
        name=HANDS_ON,
    )
    return materialized


@functools.cache
def _permute(permutation: tuple[int, ...] | None) -> Callable[[tf.Tensor], tf.Tensor]:
    return tf.identity if permutation is None else lambda t: tf.transpose(t, permutation)


@functools.cache
def _permute_negative(permutation: tuple[int, ...] | None) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda t: tf.negative(_permute(permutation)(t))


@functools.lru_cache(maxsize=256)
def branches(
    bodies: tuple[Callable[..., tf.Tensor], ...],
    kinds: tuple[tuple[tf.TensorShape, tf.DType], ...],
) -> list[Any]:
    """Return each of ``bodies`` as a function of tensors of the ``kinds``, shape and type each."""
    specs = [tf.TensorSpec(*kind) for kind in kinds]
    # A function of no graph: it would keep that alive.
    with tf.init_scope():
        functions = [tf.function(body, autograph=False) for body in bodies]
        return [function.get_concrete_function(*specs) for function in functions]


def is_vectorized() -> bool:
    """Whether the graph under construction is the body of a vectorized map, as of a jacobian.

    A branch would be taken for some of its elements and not for others, by sizes that XLA does not
    know.
    """
    return is_in_vectorized_body(tf.compat.v1.get_default_graph())
