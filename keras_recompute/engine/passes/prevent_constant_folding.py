"""Prevention of constant folding: large arrays exist only where the compiled program makes them.

For XLA. Before XLA sees a graph, TensorFlow computes everything in it that reads no input. So the
result of ``tf.zeros`` is made in memory and stays there: over 100 MiB for a small transformer.
Therefore large zeros are an empty tensor, padded by an operation that TensorFlow has no kernel for.
XLA turns it into the same broadcast as ``tf.zeros``.

A causal mask reads no input either, and becomes a constant as large as the batch. Each section
would have its own in its branch. Padded by nothing before it is repeated, it is part of the kernels
that read it.

What it gains: benchmarks/notes/process_memory.md, and predictions.md there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from ...seams.tensorflow.xla import xla_pad
from ..graph.graph_constants import memoized_op, start_indices
from .thresholds import FOLDED_ELEMENTS


def runtime_zeros(shape: Sequence[int | tf.Tensor], dtype: tf.DType) -> tf.Tensor | None:
    """Return zeros of ``shape``; None where they are small, or their number is unknown."""
    if not all(isinstance(d, int) for d in shape) or math.prod(shape) < FOLDED_ELEMENTS:
        return None
    return _padded_at_runtime(memoized_op(tf.zeros, (0, *shape[1:]), dtype), shape[0])


def runtime_broadcast(operation: tf.Operation) -> Callable[..., tf.Tensor] | None:
    """Return the function that replaces ``operation`` if it repeats a few constants many times."""
    if operation.type not in _REPEAT:
        return None
    few, many = (t.shape.num_elements() for t in (operation.inputs[0], operation.outputs[0]))
    is_large = bool(few and many) and many >= FOLDED_ELEMENTS and many > few
    return _REPEAT[operation.type] if is_large and _is_constant(operation) else None


def _is_constant(operation: tf.Operation) -> bool:
    """Whether ``operation`` reads constants and nothing else."""
    waiting, seen = [operation], {operation}
    while waiting:
        made_by = {t.op for t in waiting.pop().inputs} - seen
        if any(op.type != "Const" and not op.inputs for op in made_by):
            return False
        seen |= made_by
        waiting.extend(made_by)
    return True


def _broadcast(few: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    return tf.broadcast_to(_padded_at_runtime(few), shape)


def _tile(few: tf.Tensor, multiples: tf.Tensor) -> tf.Tensor:
    return tf.tile(_padded_at_runtime(few), multiples)


_REPEAT = {"BroadcastTo": _broadcast, "Tile": _tile}


def _padded_at_runtime(tensor: tf.Tensor, behind: int = 0) -> tf.Tensor:
    """Return ``tensor`` with ``behind`` zeros along the first axis.

    TensorFlow has no kernel that could compute it before XLA does.
    """
    below = start_indices(0, 0, tensor.shape.rank)
    return xla_pad(
        tensor,
        memoized_op(tf.zeros, (), tensor.dtype),
        below,
        start_indices(0, behind, tensor.shape.rank),
        below,
    )
