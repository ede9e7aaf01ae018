"""Hoisting: what back-propagation begins with, and needs no replay for, runs before the fence of a section.

For XLA, whose branches hold what they are given until they end. Behind a section that ends with an activation back-propagation
begins with the slope of that: it reads the incoming gradient and the section's result, which is at hand, and nothing that is
replayed. In the branch both would be held beside what is made of them, to its end. Before it one array is left of the three,
and the gradient is overwritten. Where several gradients come in it took more: what is made of one waits for the others.

What it gains: benchmarks/notes/residuals.md.
"""

from __future__ import annotations

import tensorflow as tf

from ..annotations import is_identity
from ..joint_graph import JointGraph
from ..op_sets import SLOPES
from ..program import GraphProgram, inputs_of, program_between
from ..two_stage_program import EarlyStage


def hoist_activation_grad(backward: GraphProgram, joint: JointGraph) -> EarlyStage | None:
    """Return ``backward`` as what makes other incoming gradients, and the rest, which takes those; None if there is nothing."""
    if sum(dy is not None for dy in joint.output_gradients) != 1:
        return None
    *ports, (gradient,) = backward.ports
    kept_by_caller = {t.ref() for port in ports for t in port}
    outputs = {t.ref() for t in backward.outputs}
    readers: dict[object, list[tf.Operation]] = {}
    for operation in backward.operations:
        for tensor in inputs_of(operation, backward.replays):
            readers.setdefault(tensor.ref(), []).append(operation)

    end = reached = gradient
    while reached.ref() not in outputs and len(reading := readers.get(reached.ref(), [])) == 1:
        [operation] = reading
        beside = [t for t in operation.inputs if t is not reached]
        is_known = operation.type in SLOPES or is_identity(operation)
        if not is_known or not all(t.ref() in kept_by_caller for t in beside) or not _is_like(operation.outputs, reached):
            break
        reached = operation.outputs[0]
        end = end if is_identity(operation) else reached
    if end is gradient:
        return None
    return EarlyStage(
        program_between(joint.trace, backward.ports, [end], replays=backward.replays),
        program_between(joint.trace, (*ports, (end,)), backward.outputs, replays=backward.replays),
    )


def _is_like(made: list[tf.Tensor], gradient: tf.Tensor) -> bool:
    """Whether one array is ``made``, as large as ``gradient``."""
    shape = gradient.shape
    return len(made) == 1 and made[0].dtype == gradient.dtype and shape.rank is not None and made[0].shape == shape
