"""Take a slice where it is read, not before.

A loop that reads pieces of ``feed[m]`` would keep all of ``feed[m]`` alive around it, although it needs one piece at a
time. Selecting is free of arithmetic, so the selection is repeated inside the loop's body, where a compiler merges it
with the taking of the piece.
"""

from __future__ import annotations

import tensorflow as tf

from .program import Program

# Operations whose first input is the data and whose other inputs only say which part of it.
_SELECTIONS = ("Identity", "StridedSlice", "Slice", "GatherV2", "Squeeze", "ExpandDims")


def sunk(value: tf.Tensor) -> tf.Tensor:
    """Return ``value`` for use in the loop body under construction, with its selection repeated there."""
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(value, "graph") or value.graph is graph:
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
        graph=value.graph, ports=tuple((t,) for t in unique), handles=(), operations=tuple(reversed(chain)), outputs=(value,)
    )
    return selection.check().write(unique)[0]
