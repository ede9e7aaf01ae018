"""Take what a turn of a loop reads where it is read, not before.

A loop that reads pieces of ``feed[m]`` would keep all of ``feed[m]`` alive around it, although it needs one piece at a
time. Selecting is free of arithmetic, so the selection is repeated inside the loop's body, where a compiler merges it
with the taking of the piece. Nor is a stack of tensors made in front of a loop that takes one of them in each turn: the loop
chooses among them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..cost import known_elements
from ..once import Number, constant, equals
from ..pieces import take
from ..program import Program
from ..target import target_now

# Operations whose first input is the data and whose other inputs only say which part of it.
_SELECTIONS = ("Identity", "StridedSlice", "Slice", "GatherV2", "Squeeze", "ExpandDims")

_LARGE = 16384  # elements from which on a choice is worth the operations that TensorFlow writes down for it


def taken(whole: tf.Tensor, axis: int, begin: Number, length: int) -> tf.Tensor:
    """Return ``length`` steps of ``whole`` along ``axis``, from ``begin``, in the loop body under construction."""
    stacked = _stacked(whole)
    if stacked and axis == 0 and length == 1:
        return tf.expand_dims(_chosen(stacked, begin), constant(0))
    return take(sunk(whole), axis, begin, length)


def sunk(value: tf.Tensor) -> tf.Tensor:
    """Return ``value`` for use in the loop body under construction, with its selection repeated there."""
    if not _is_outside(value):
        return value
    chain: list[tf.Operation] = []
    source = value
    while source.op.type in _SELECTIONS:
        chain.append(source.op)
        source = source.op.inputs[0]
    if not any(op.type in ("StridedSlice", "Slice", "GatherV2") for op in chain):
        return value
    given = [source, *(t for op in chain for t in op.inputs[1:])]
    unique = list({t.ref(): t for t in given}.values())
    selection = Program(
        graph=value.graph,
        ports=tuple((t,) for t in unique),
        handles=(),
        operations=tuple(reversed(chain)),
        outputs=(value,),
        target=target_now(),
    )
    return selection.check().write(unique)[0]


def _stacked(whole: tf.Tensor) -> list[tf.Tensor]:
    """Return the tensors that ``whole`` is a stack of, if choosing among them keeps much from being made; else none.

    Outside XLA every choice would be an array of its own, one after the other.
    """
    if (
        not _is_outside(whole)
        or "chosen_stacks" not in target_now().passes
        or whole.op.type != "Pack"
        or whole.op.get_attr("axis") != 0
    ):
        return []
    return list(whole.op.inputs) if known_elements(whole.op.inputs[0]) >= _LARGE else []


def _chosen(tensors: list[tf.Tensor], number: Number) -> tf.Tensor:
    """Return ``tensors[number]``. Compilers make one pass over what is chosen of a chain of choices between two."""
    chosen, *others = tensors
    for n, other in enumerate(others, start=1):
        chosen = tf.where(equals(number, n), other, chosen)
    return chosen


def _is_outside(value: Any) -> bool:
    return hasattr(value, "graph") and value.graph is not tf.compat.v1.get_default_graph()
