"""Hoisting: the first steps of back-propagation that need no replay run before the fence.

For XLA, whose branches hold what they are given until they end. After a section that ends with an
activation, back-propagation begins with the activation's gradient. It reads the incoming gradient
and the section's result, which is available, and nothing that is replayed. In the branch both would
be held beside the product, to its end. Before the branch, in one of its own, one of the three
arrays is left. With several incoming gradients it took more memory, since what is made of one waits
for the others.

What it gains: benchmarks/notes/residuals.md.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from ..capture.joint_graph import JointGraph
from ..graph.annotations import is_identity
from ..graph.dataflow import port_refs, tensor_refs
from ..graph.op_sets import SLOPES
from ..partition.program import GraphProgram, program_between
from ..partition.program_slice import inputs_of
from ..partition.stages import Barrier, Stage


def hoist_activation_grad(backward: GraphProgram, joint: JointGraph) -> tuple[Stage, ...]:
    """Return ``backward`` as a prologue that makes another incoming gradient, and the rest.

    It stays as it is if there is nothing to hoist.
    """
    unchanged = (Stage(backward),)
    if len(joint.incoming) != 1:
        return unchanged
    *ports, (gradient,) = backward.ports
    available = port_refs(ports)
    outputs = tensor_refs(backward.outputs)
    readers: dict[object, list[tf.Operation]] = {}
    for operation in backward.operations:
        for tensor in inputs_of(operation, backward.replays):
            readers.setdefault(tensor.ref(), []).append(operation)

    end = reached = gradient
    while reached.ref() not in outputs and len(reading := readers.get(reached.ref(), [])) == 1:
        [operation] = reading
        other_inputs = [t for t in operation.inputs if t is not reached]
        is_known = operation.type in SLOPES or is_identity(operation)
        if not is_known or not available.issuperset(tensor_refs(other_inputs)):
            break
        if not _is_like(operation.outputs, reached):
            break
        reached = operation.outputs[0]
        end = end if is_identity(operation) else reached
    if end is gradient:
        return unchanged
    between = functools.partial(program_between, joint.trace, replays=backward.replays)
    prologue = between(backward.ports, [end])
    rest = between((*ports, (end,)), backward.outputs)
    return Stage(prologue, Barrier.SECTION_FENCE), Stage(rest)


def _is_like(made: list[tf.Tensor], gradient: tf.Tensor) -> bool:
    """Whether one array is ``made``, as large as ``gradient``."""
    shape = gradient.shape
    return (
        len(made) == 1
        and made[0].dtype == gradient.dtype
        and shape.rank is not None
        and made[0].shape == shape
    )
