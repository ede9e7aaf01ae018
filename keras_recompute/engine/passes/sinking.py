"""Sinking: what a turn of a loop reads is selected inside the loop's body, and not before.

For every target. A loop that reads slices of ``feed[m]`` would keep all of ``feed[m]`` alive around
it, although it needs one slice at a time, and a compiler moves nothing into a loop. A selection has
no arithmetic, so it is repeated inside the body, where XLA merges it with the slicing.

What it gains: benchmarks/notes/passes.md.
"""

from __future__ import annotations

import tensorflow as tf

from ..graph.dataflow import kinds
from ..graph.graph_constants import Number
from ..graph.target import Target
from ..graph.target_ops import dynamic_slice
from ..partition.program import GraphProgram

# Operations whose first input is the data and whose other inputs only say which part of it.
_SELECTIONS = ("Identity", "StridedSlice", "Slice", "GatherV2", "Squeeze", "ExpandDims")


def sink_slice(
    whole: tf.Tensor, axis: int, begin: Number, length: int, target: Target
) -> tf.Tensor | None:
    """Return ``length`` steps of ``whole``, with the selection that made it repeated here.

    None if no selection made it.
    """
    chain: list[tf.Operation] = []
    source = whole
    while source.op.type in _SELECTIONS:
        chain.append(source.op)
        source = source.op.inputs[0]
    if kinds(chain).isdisjoint(("StridedSlice", "Slice", "GatherV2")):
        return None
    given = [source, *(t for op in chain for t in op.inputs[1:])]
    unique = list({t.ref(): t for t in given}.values())
    selection = GraphProgram(
        graph=whole.graph,
        ports=tuple(zip(unique)),
        handles=(),
        operations=tuple(reversed(chain)),
        outputs=(whole,),
        target=target,
    )
    return dynamic_slice(selection.check().write(unique)[0], axis, begin, length)
