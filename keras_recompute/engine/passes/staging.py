"""Staging: a backward program in two stages, whose second stage recomputes cheap values.

For XLA. A gradient reads, say, three residuals of each convolution: its result, that normalized,
and that activated. The second and third follow from the first by arithmetic, so a replay need only
pass on the first. But in one program a compiler would merge both computations and keep all three.
So the replay of what is worth keeping (see ``min_cut``) is a stage of its own. The gradient reads
its results as opaque copies, and recomputes the cheap values where it reads them.

What it gains: benchmarks/notes/residuals.md.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ..capture.joint_graph import JointGraph
from ..graph.dataflow import pick, port_refs
from ..graph.op_sets import is_compared, known_elements
from ..graph.target_ops import fenced
from ..partition.first_gradients import first_gradients, with_outputs
from ..partition.partition import port_of
from ..partition.program import GraphProgram, program_between
from ..partition.program_slice import given_refs
from ..partition.residual_choice import residuals, saved_values
from ..partition.two_stage_program import TwoStageProgram
from .fence import write_with_late_copies
from .min_cut import min_cut_policy


@dataclass(frozen=True, eq=False)
class StagedRecomputation(TwoStageProgram):
    """A program whose ``rest`` reads the results of ``first`` as opaque copies.

    It is in a branch if ``is_compared``: then ``rest`` finds elements of a result by equality, so
    that it must be computed once. The numbers in ``like`` are the ports whose gradients ``rest``
    returns.

    ``awaited`` has, for each result of ``first``, the number of a result of ``rest``: the gradient
    that it is first used with, for which its copy waits. If it is None, the copy waits for the
    incoming gradients. ``outputs`` is the number of results of the whole program.
    """

    is_compared: bool
    like: tuple[int, ...]
    awaited: tuple[int | None, ...]
    outputs: int

    def write(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Do what ``GraphProgram.write`` does for the whole program."""
        made = self.first.write(pick(values, self.read))
        if self.is_compared:
            like = pick(values, self.like)
            return fenced(
                self.rest.write, [*values, *made], after=made, like=like, target=self.first.target
            )
        results = write_with_late_copies(
            lambda copies: self.rest.write([*values, *copies]),
            made,
            awaited=self.awaited,
            after=values[len(self.read) :],
        )
        return results[: self.outputs]


def stage_recomputation(
    backward: GraphProgram, joint: JointGraph
) -> GraphProgram | StagedRecomputation:
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
        return backward
    if joint.rows and any(map(is_compared, made)):
        # The values of a sparse gradient are not like the port that they belong to.
        return backward
    incoming = len(joint.incoming)
    ports = backward.ports[: len(backward.ports) - incoming]
    given = port_refs(ports)
    all_ports = (*backward.ports, *(port_of(value, given) for value in made))
    rest = program_between(joint.trace, all_ports, backward.outputs, replays=replays)
    compared = any(map(is_compared, made))
    # GPUs and TPUs take more memory where copies wait (benchmarks/notes/updates.md).
    waits = not compared and joint.trace.target.starts_early
    begin = len(all_ports) - len(made)
    partners: list[tf.Tensor | None] = [None] * len(made)
    if waits:
        numbers_made = range(begin, len(all_ports))
        partners = first_gradients(rest, numbers_made, range(begin - incoming, begin))
    rest, awaited = with_outputs(rest, partners)
    return StagedRecomputation(
        program_between(joint.trace, ports, made, replays=replays),
        rest,
        tuple(range(len(ports))),
        compared,
        joint.produced,
        awaited,
        len(backward.outputs),
    )


def _known_bytes(tensor: tf.Tensor) -> int:
    return known_elements(tensor) * tensor.dtype.size
