"""The fence: replay starts only when the incoming gradients are there, under any compiler.

Without it a compiler sees that replayed operations equal the forward ones and merges them, or
starts them early. Both undo the saving. XLA's optimization barrier prevents merging, but XLA:CPU
drops it before it schedules. A branch is compiled on its own: nothing in it is merged or moved out.
So the backward program is in a branch, on a predicate that is always true and that no compiler can
know: the first element of each incoming gradient does not have one chosen bit pattern, a NaN that
no arithmetic produces.

A backward program that repeats arithmetic alone, such as the one behind the last checkpoint, reads
opaque copies of its inputs instead (``opaque_copies``), and frees them as it goes. Without XLA a
control dependency on the gradients has the effect of a branch.

XLA for GPUs keeps barriers until it has scheduled, so there a barrier does all of this. The host
decides about branches on a GPU, and waits for the device. A TPU decides by itself, and takes less
memory with branches.

What it gains: benchmarks/notes/passes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...backends import CPU, TPU, backend_now
from ...seams.tensorflow.xla import xla_optimization_barrier
from ..graph.dataflow import pick, put
from ..graph.graph_constants import memoized_op
from ..graph.op_sets import CONVOLUTIONS
from ..graph.opaque_values import (
    Tensors,
    is_vectorized,
    may_pass,
    opaque_copies,
    opaque_false,
    opaque_negative_zero,
    pass_barrier,
    with_elements,
    write_with_late_copies,
)
from ..graph.target import Target
from ..graph.target_ops import CheapReplay, Like, zeros_like

Body = Callable[[Tensors], list[tf.Tensor]]


def fence_with_control_deps(
    body: Body, inputs: Tensors, after: Tensors, *_: Any
) -> list[tf.Tensor]:
    """Return ``body(inputs)``, run by TensorFlow only once every tensor of ``after`` is there."""
    with tf.control_dependencies(after):
        inputs = list(map(tf.identity, inputs))
    return body(inputs)


def delay_with_control_deps(tensors: Tensors, after: Tensors) -> list[tf.Tensor]:
    """Return ``tensors``, which TensorFlow hands on only once every tensor of ``after`` is there.

    It starts an operation as soon as there is what that reads. Loops' lists of tensors stay.
    """
    if is_vectorized():
        return list(tensors)
    with tf.control_dependencies(after):
        return [tf.identity(t) if isinstance(t, tf.Tensor) and may_pass(t) else t for t in tensors]


def delay_with_barrier(tensors: Tensors, after: Tensors) -> list[tf.Tensor]:
    """Return ``tensors`` behind a barrier with those of ``after``, for XLA on a GPU."""
    if is_vectorized():
        return list(tensors)
    return pass_barrier(tensors, after)[0]


def fence_with_cond(
    body: Body,
    inputs: Tensors,
    after: Tensors,
    like: Sequence[Like],
    cheap: CheapReplay | None,
    target: Target,
) -> list[tf.Tensor]:
    """Return ``body(inputs)``, computed by XLA only once every tensor of ``after`` is there.

    The arguments are those of ``target_ops.fenced``. A branch holds what it is given until it ends.
    A cheap replay has none, since little is lost if XLA begins it early. What it hands on then
    waits for the gradients of weights, which XLA would leave to the end otherwise.
    """
    if is_vectorized():
        return body(inputs)
    if cheap is not None:
        return _without_branch(body, inputs, after, cheap)
    tokens = with_elements(after)
    if not tokens or not like:
        return body(inputs)
    # The other branch is never taken, but a compiler must believe that it could be. It stands
    # second, since a TPU's compiler takes more memory otherwise.
    is_usual = tf.logical_not(opaque_false(tokens))

    def never_taken() -> list[tf.Tensor]:
        return [_made_by_no_kernel(each, target) for each in like]

    results = tf.cond(is_usual, lambda: body(inputs), never_taken)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _without_branch(
    body: Body, inputs: Tensors, after: Tensors, cheap: CheapReplay
) -> list[tf.Tensor]:
    """Return ``body(inputs)``, a cheap replay, on opaque copies of the inputs that it reads."""
    given = list(inputs)

    def write(copies: Tensors) -> list[tf.Tensor]:
        put(given, cheap.read, copies)
        return body(given)

    read = pick(inputs, cheap.read)
    results = write_with_late_copies(write, read, awaited=cheap.awaited, after=after)
    finished, handed_on = pick(results, cheap.finished), pick(results, cheap.handed_on)
    late = list(results)
    # XLA would leave the gradients of weights to the end, so back-propagation waits for them.
    put(late, cheap.handed_on, opaque_copies(handed_on, finished))
    if cheap.is_updated and backend_now() == CPU:
        # A weight is updated in place. XLA would copy it at the start of the program, if it
        # could be updated before the section has read it for the last time.
        put(late, cheap.finished, opaque_copies(finished, handed_on))
    return late


def _made_by_no_kernel(like: Like, target: Target) -> tf.Tensor:
    """Return what the branch that is never taken returns: ``like``, so that no kernel is compiled.

    ``like`` may be a function that makes zeros, as for the slices of a sparse gradient. On a TPU it
    is zeros: its compiler takes more memory for programs that return what they are given.
    """
    if not isinstance(like, tf.Tensor):
        return like()
    return zeros_like(like, target) if backend_now() == TPU else like


def fence_with_barrier(
    body: Body,
    inputs: Tensors,
    after: Tensors,
    like: Sequence[Like],
    cheap: CheapReplay | None,
    target: Target,
) -> list[tf.Tensor]:
    """As ``fence_with_cond``, where XLA keeps its barriers until it has scheduled."""
    tokens = with_elements(after)
    if is_vectorized():
        return body(inputs)
    if cheap is not None or not tokens:
        results = fence_with_cond(body, inputs, after, like, cheap, target)
    else:
        passed, awaited = pass_barrier(list(map(_flat_kernel, inputs)), tokens)
        passed = list(map(_shaped, passed, inputs))
        results = _depending_on(awaited, body(passed))
    return list(map(_in_layout_of, results, like))


def _is_kernel(tensor: Like) -> bool:
    """Whether a convolution of the forward pass reads ``tensor`` as its kernel."""
    if not isinstance(tensor, tf.Tensor) or not tensor.shape.is_fully_defined():
        return False
    return any(op.type in CONVOLUTIONS and op.inputs[1] is tensor for op in tensor.consumers())


def _in_layout_of(gradient: tf.Tensor, like: Like) -> tf.Tensor:
    """Return ``gradient``; for XLA in the layout of the variable if ``like`` is a kernel.

    A GPU's convolutions read and make kernels in a layout of their own. XLA would update the weight
    in it, from the copy that it made for the forward pass, and so keep that copy.
    """
    if not _is_kernel(like):
        return gradient
    (flat,) = xla_optimization_barrier([tf.reshape(gradient, [-1])])
    return tf.reshape(flat, gradient.shape)


def _flat_kernel(tensor: tf.Tensor) -> tf.Tensor:
    """Return a kernel as a vector, which has one layout; other tensors as they are."""
    return tf.reshape(tensor, [-1]) if _is_kernel(tensor) else tensor


def _shaped(tensor: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tensor if tensor.shape.rank == like.shape.rank else tf.reshape(tensor, like.shape)


def _depending_on(awaited: Tensors, results: Tensors) -> list[tf.Tensor]:
    """Return ``results``, where the smallest depends on ``awaited``; no value changes.

    Without a reader XLA would remove ``awaited`` from the barrier.
    """
    sizes = {}
    for number, tensor in enumerate(results):
        size = tensor.shape.num_elements()
        if tensor.dtype.is_floating and size:
            sizes[number] = size
    found = list(results)
    if sizes:
        smallest = min(sizes, key=sizes.__getitem__)
        dtype = found[smallest].dtype
        hidden = memoized_op(opaque_negative_zero, opaque_false(awaited), dtype)
        found[smallest] = hidden + found[smallest]
    return found
