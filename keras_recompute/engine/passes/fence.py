"""An order that no compiler undoes: replay starts only when the incoming gradients are there.

Left to itself a compiler sees that the replayed operations equal the forward ones and merges them, or starts them
early; both undo the saving. XLA's optimisation barrier stops the merging but XLA:CPU drops it before it schedules. A
branch is compiled apart and neither merged with nor hoisted from, so the backward program stands in one, on a predicate
that no compiler can know and that is always true: the first element of each incoming gradient does not have one chosen
bit pattern, a NaN that no arithmetic produces. A backward program that repeats arithmetic alone, such as that behind the last
checkpoint, reads what it is given as other values by such a predicate instead (``opaque_copies``), and frees it as it goes.
Outside
XLA a control dependency on the gradients does the same as a branch. All work while a program is written.

XLA for GPUs keeps the barrier until it has scheduled, so there all of this is done by one: each branch is the host's to decide
there, which waits for the device. A TPU decides by itself, and takes less memory with branches.

What it gains: benchmarks/notes/passes.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...backends import CPU, GPU, TPU, backend_now
from ...seams.tensorflow.vectorized_map import is_in_vectorized_body
from ...seams.tensorflow.xla import xla_optimization_barrier
from ..graph_constants import constant, memoized_op
from ..graph_state import graph_state
from ..op_sets import CONVOLUTIONS, HANDS_ON
from ..target import Target
from ..target_ops import CheapReplay, Like, zeros_like

# A quiet NaN whose payload no floating-point unit generates (they generate a zero payload or pass one on).
_NEVER = 0x7FD5_AA5A
_DECIDED = "_keras_recompute_decided"


Tensors = Sequence[tf.Tensor]
Body = Callable[[Tensors], list[tf.Tensor]]


def fence_with_control_deps(body: Body, inputs: Tensors, after: Tensors, *_: Any) -> list[tf.Tensor]:
    """Return ``body(inputs)``, run by TensorFlow only once every tensor of ``after`` is there."""
    with tf.control_dependencies(after):
        inputs = [tf.identity(t) for t in inputs]
    return body(inputs)


def fence_with_cond(
    body: Body, inputs: Tensors, after: Tensors, like: Sequence[Like], cheap: CheapReplay | None, target: Target
) -> list[tf.Tensor]:
    """Return ``body(inputs)``, computed by XLA only once every tensor of ``after`` is there; the rest as for ``fenced``.

    A branch holds what it is given until it ends. There is none around a cheap replay, of which little is lost where XLA
    begins with it early. What it hands on then waits for the gradients of weights, which would be left to the end otherwise.
    """
    if _is_vectorised():
        return body(inputs)
    if cheap is not None:
        others = dict(zip(cheap.read, opaque_copies([inputs[number] for number in cheap.read], after)))
        results = body([others.get(number, t) for number, t in enumerate(inputs)])
        finished = [results[number] for number in cheap.finished]
        handed_on = [results[number] for number in cheap.handed_on]
        late = dict(zip(cheap.handed_on, opaque_copies(handed_on, finished)))
        if cheap.is_updated and backend_now() == CPU:
            # A weight is updated in place. XLA would copy it at the start of the program, if it
            # could be updated before the section has read it for the last time.
            late.update(zip(cheap.finished, opaque_copies(finished, handed_on)))
        return [late.get(number, t) for number, t in enumerate(results)]
    tokens = with_elements(after)
    if not tokens or not like:
        return body(inputs)
    # The other branch is never taken, but a compiler must believe that it could be. It stands second, since a TPU's compiler
    # takes more memory otherwise.
    is_usual = tf.logical_not(opaque_false(tokens))
    results = tf.cond(is_usual, lambda: body(inputs), lambda: [_made_by_no_kernel(t, target) for t in like])
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _made_by_no_kernel(like: Like, target: Target) -> tf.Tensor:
    """Return what the branch that is never taken hands on: ``like`` itself, for which no kernel is compiled.

    It may be a function that makes zeros, as for the slices of a sparse gradient. Zeros on a TPU, whose compiler takes more
    memory for programs that hand on what they are given.
    """
    if not isinstance(like, tf.Tensor):
        return like()
    return zeros_like(like, target) if backend_now() == TPU else tf.identity(like)


def fence_with_barrier(
    body: Body, inputs: Tensors, after: Tensors, like: Sequence[Like], cheap: CheapReplay | None, target: Target
) -> list[tf.Tensor]:
    """As ``fence_with_cond``, where XLA keeps its barriers until it has scheduled."""
    tokens = with_elements(after)
    if _is_vectorised():
        return body(inputs)
    if cheap is not None or not tokens:
        results = fence_with_cond(body, inputs, after, like, cheap, target)
    else:
        passed, awaited = _pass_barrier([_flat_kernel(t) for t in inputs], tokens)
        passed = [_shaped(t, given) for t, given in zip(passed, inputs)]
        results = _depending_on(awaited, body(passed))
    return [_in_usual_layout(t) if _is_kernel(each) else t for t, each in zip(results, like)]


def _is_kernel(tensor: Like) -> bool:
    """Whether a convolution of the forward pass reads ``tensor`` as its kernel."""
    if not isinstance(tensor, tf.Tensor) or not tensor.shape.is_fully_defined():
        return False
    return any(op.type in CONVOLUTIONS and op.inputs[1] is tensor for op in tensor.consumers())


def _in_usual_layout(gradient: tf.Tensor) -> tf.Tensor:
    """Return the ``gradient`` of a kernel, for XLA in the layout of the variable.

    A GPU's convolutions read and make kernels in a layout of their own. XLA would update the
    weight in it, from the copy that it made for the forward pass, and so keep that copy.
    """
    (flat,) = xla_optimization_barrier([tf.reshape(gradient, [-1])])
    return tf.reshape(flat, gradient.shape)


def _flat_kernel(tensor: tf.Tensor) -> tf.Tensor:
    """Return a kernel as a vector, of which XLA knows one layout; other tensors as they are."""
    return tf.reshape(tensor, [-1]) if _is_kernel(tensor) else tensor


def _shaped(tensor: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tensor if tensor.shape.rank == like.shape.rank else tf.reshape(tensor, like.shape)


def _pass_barrier(tensors: Tensors, after: Tensors) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Return ``tensors`` once every tensor of ``after`` is there, and ``after``.

    XLA cannot tell that they are unchanged. It removes those of ``after`` that have no reader.
    """
    passed = iter(xla_optimization_barrier([*(t for t in tensors if _may_pass(t)), *after]))
    return [next(passed) if _may_pass(t) else t for t in tensors], list(passed)


def _depending_on(awaited: Tensors, results: Tensors) -> list[tf.Tensor]:
    """Return ``results``, the smallest of which depends on ``awaited``. No value changes.

    Without a reader XLA would remove ``awaited`` from the barrier.
    """
    sizes = {n: t.shape.num_elements() for n, t in enumerate(results) if t.dtype.is_floating}
    known = {n: size for n, size in sizes.items() if size}
    if not known:
        return list(results)
    smallest = min(known, key=known.__getitem__)
    hidden = memoized_op(opaque_negative_zero, opaque_false(awaited), results[smallest].dtype)
    return [hidden + t if n == smallest else t for n, t in enumerate(results)]


def _may_pass(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.variant, tf.resource)


def opaque_copies(tensors: Tensors, after: Tensors) -> list[tf.Tensor]:
    """Return ``tensors``, which XLA must take for others than they are, made only once every tensor of ``after`` is there.

    A hidden zero is added to each element; on a TPU it is chosen on a condition that is never met, and on a GPU it stands
    behind a barrier. Whole numbers stay: they may be sizes, which XLA must know.
    """
    tokens = with_elements(after)
    if not tokens or _is_vectorised():
        return list(tensors)
    if backend_now() == GPU:
        # The tokens have no reader behind the barrier, and XLA removes them. On a GPU these copies
        # need not wait; it is enough that XLA cannot merge them with the originals.
        floating, _ = _pass_barrier([t for t in tensors if t.dtype.is_floating], tokens)
        passed = iter(floating)
        return [next(passed) if t.dtype.is_floating else t for t in tensors]
    is_never = opaque_false(tokens)
    if backend_now() == TPU:
        return [tf.where(is_never, memoized_op(tf.zeros, (), t.dtype), t) if t.dtype.is_floating else t for t in tensors]
    return [memoized_op(opaque_negative_zero, is_never, t.dtype) + t if t.dtype.is_floating else t for t in tensors]


def opaque_negative_zero(is_never: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return a scalar that changes no number that it is added to, of which XLA does not know that: zero with a minus sign.

    A choice for each element instead would take XLA:CPU longer to compile: LLVM writes such loops twice, once for each choice.
    """
    return tf.where(is_never, tf.ones((), dtype), -tf.zeros((), dtype))


def materialize(tensor: tf.Tensor, after: Tensors = (), permutation: tuple[int, ...] | None = None) -> tf.Tensor:
    """Return ``tensor``, which XLA computes only once and keeps, once every tensor of ``after`` is there.

    Its axes are permuted, if ``permutation`` says how. It comes from a branch, which no compiler
    repeats where it is read, or from behind a barrier. Branches of one shape share their functions.
    """
    tokens = with_elements((tensor, *after))
    if not tokens or _is_vectorised():
        return _permute(permutation)(tensor)
    if backend_now() == GPU:
        passed, _ = _pass_barrier([_permute(permutation)(tensor)], after)
        return passed[0]
    # The permutation stands in the branch: before it, its result would be one more array.
    bodies = _permute(permutation), _permute_negative(permutation)
    permuted, negated = branches(bodies, ((tensor.shape, tensor.dtype),))
    (chosen,) = tf.raw_ops.StatelessIf(
        cond=opaque_false(tokens),
        input=[tensor],
        Tout=[tensor.dtype],
        then_branch=negated,
        else_branch=permuted,
        output_shapes=[permuted.outputs[0].shape],
        name=HANDS_ON,
    )
    return chosen


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
    with tf.init_scope():  # a function of no graph: it would keep that alive
        functions = [tf.function(body, autograph=False) for body in bodies]
        return [function.get_concrete_function(*specs) for function in functions]


def with_elements(tensors: Tensors) -> list[tf.Tensor]:
    """Return the ``tensors`` that can have a first element: lists and handles have none, nor has what is empty."""
    return [t for t in tensors if _may_pass(t) and t.shape.num_elements() != 0]


def _is_vectorised() -> bool:
    """Whether the graph under construction is the body of a vectorised map, as a jacobian's is.

    A branch would be taken for some of its turns and not for others, by sizes that XLA does not know.
    """
    return is_in_vectorized_body(tf.compat.v1.get_default_graph())


def opaque_false(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return a scalar that is False, computed from the first element of each of ``tensors`` so that no compiler can know it.

    By few operations, since there are many fences: a sum keeps the bits of a NaN among its terms, or is another NaN. Inside a
    branch on the same ``tensors`` it is what the branch was decided by: a value that is given, where computed anew it would be
    part of every kernel that chooses by it, and no two of those would be equal.
    """
    graph, here = tensors[0].graph, tf.compat.v1.get_default_graph()
    known = graph_state(graph, _DECIDED)
    key = tuple(t.ref() for t in tensors)
    if key in known:
        return known[key]
    firsts = [first_element(t) for t in tensors]
    found = tf.equal(tf.bitcast(firsts[0] if len(firsts) == 1 else tf.add_n(firsts), tf.int32), constant(_NEVER))
    if graph is here and backend_now() != TPU:
        known[key] = found
    return found


def first_element(tensor: tf.Tensor) -> tf.Tensor:
    """Return the first element of ``tensor`` as a float32, ``()``; zero if it turns out to have none."""
    rank = tensor.shape.rank
    if rank == 0:
        return tf.cast(tensor, tf.float32)
    if tensor.shape.is_fully_defined():
        first, one = constant((0,) * rank), constant((1,) * rank)
        found = tf.raw_ops.StridedSlice(input=tensor, begin=first, end=one, strides=one, shrink_axis_mask=2**rank - 1)
        return tf.cast(found, tf.float32)
    if rank is None:
        found = tf.reshape(tensor, [-1])[:1]
    else:
        found = tf.slice(tensor, constant((0,) * rank), tf.minimum(tf.shape(tensor), 1))
    return tf.reduce_sum(tf.cast(found, tf.float32))
