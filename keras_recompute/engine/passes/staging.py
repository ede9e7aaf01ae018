"""Staging: a backward program in two stages, whose second stage recomputes cheap values.

For XLA. A gradient reads, say, three residuals of each convolution: its result, that normalized,
and that activated. The second and third follow from the first by arithmetic, so a replay need only
pass on the first. But in one program a compiler would merge both computations and keep all three.
So the replay of what is worth keeping (see ``min_cut``) is a stage of its own. The gradient reads
its results as opaque copies, and recomputes the cheap values where it reads them.

What it gains: benchmarks/notes/residuals.md.
"""

from __future__ import annotations

import functools
import operator

import tensorflow as tf

from ..capture.joint_graph import JointGraph
from ..graph.dataflow import port_refs
from ..graph.op_sets import is_compared, known_elements
from ..partition.partition import port_of
from ..partition.program import GraphProgram, program_between
from ..partition.program_slice import given_refs
from ..partition.residual_choice import residuals, saved_values
from ..partition.stages import Barrier, Stage, with_awaited
from .min_cut import min_cut_policy


def stage_recomputation(backward: GraphProgram, joint: JointGraph) -> tuple[Stage, ...]:
    """Return ``backward`` as a replay and the gradient of its results.

    It stays as it is where that would keep as much.
    """
    available = given_refs(backward.ports, backward.handles)
    needed = residuals(joint, backward.outputs, available)
    decided, replays = saved_values(
        joint, min_cut_policy(needed, available), backward.outputs, available
    )
    made = tuple(map(operator.itemgetter(0), decided))
    # A loop's lists of tensors stay in one program.
    is_plain = all(value.dtype not in (tf.variant, tf.resource) for value in made)
    keeps_less = sum(map(_known_bytes, made)) < sum(map(_known_bytes, needed))
    if not made or not is_plain or not keeps_less or replays != backward.replays:
        return (Stage(backward),)
    compared = any(map(is_compared, made))
    # The values of a sparse gradient are not like the port that they belong to.
    if compared and joint.rows:
        return (Stage(backward),)
    between = functools.partial(program_between, joint.trace, replays=replays)
    end = len(backward.ports)
    begin = end - len(joint.incoming)
    ports = backward.ports[:begin]
    given = port_refs(ports)
    all_ports = (*backward.ports, *(port_of(value, given) for value in made))
    replay, rest = between(ports, made), between(all_ports, backward.outputs)
    if compared:
        # Elements of a result are found by equality, so it must be computed once.
        return Stage(replay, Barrier.BRANCH), Stage(rest)
    rest, awaited = with_awaited(rest, range(end, len(all_ports)), range(begin, end))
    after = tuple(port[0] for port in backward.ports[begin:])
    return Stage(replay, Barrier.COPIED_RESULTS, awaited, after), Stage(rest)


def _known_bytes(tensor: tf.Tensor) -> int:
    return known_elements(tensor) * tensor.dtype.size
