"""Staging: a backward program in two, the second of which makes cheap values again where it reads them.

For XLA. A gradient reads, say, three residuals of each convolution: its result, that normalised, and that activated. The
second and the third follow from the first by arithmetic, so a replay need only hand on the first. But in one program a compiler
would merge both makings and keep all three. So the replay of what is worth keeping (see ``min_cut``) is a program of its own,
whose results the gradient reads as values that no compiler can tell to be the same.

What it gains: benchmarks/notes/residuals.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ..decisions import residuals, saved_values
from ..joint import Joint
from ..kinds import is_compared, known_elements
from ..partition import port_of
from ..program import GraphProgram, program_between
from ..split import Split
from ..writing import fenced
from .fence import unlike
from .min_cut import all_but_cheap


@dataclass(frozen=True, eq=False)
class Staged(Split):
    """Its ``rest`` reads the results of ``first`` as other values than they are.

    In a branch if ``is_compared``: ``rest`` finds elements of a result by equality, so that it must be made once. The numbers
    in ``like`` are of ports of which ``rest`` returns the gradients.
    """

    is_compared: bool
    like: tuple[int, ...]

    def write(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Do what ``GraphProgram.write`` does for the whole program."""
        made = self.first.write([values[number] for number in self.read])
        if self.is_compared:
            like = [values[number] for number in self.like]
            return fenced(self.rest.write, [*values, *made], after=made, like=like, target=self.first.target)
        return self.rest.write([*values, *unlike(made, after=values[len(self.read) :])])


def in_stages(backward: GraphProgram, joint: Joint) -> GraphProgram | Staged:
    """Return ``backward`` as a replay and a gradient of its results, or as it is where that would keep as much."""
    available = {t.ref() for port in backward.ports for t in port} | {placeholder.ref() for placeholder, _ in backward.handles}
    needed = residuals(joint, backward.outputs, available)
    decided, replays = saved_values(joint, all_but_cheap(needed, available), backward.outputs, available)
    made = tuple(value for value, _ in decided)
    is_plain = all(value.dtype not in (tf.variant, tf.resource) for value in made)  # a loop's lists stay in one program
    keeps_less = sum(map(_known_bytes, made)) < sum(map(_known_bytes, needed))
    if not made or not is_plain or not keeps_less or replays != backward.replays:
        return backward
    if joint.rows and any(map(is_compared, made)):
        return backward  # the values of a sparse gradient are not like the port that they belong to
    incoming = sum(dy is not None for dy in joint.output_gradients)
    ports = backward.ports[: len(backward.ports) - incoming]
    given = {t.ref() for port in ports for t in port}
    all_ports = (*backward.ports, *(port_of(value, given) for value in made))
    return Staged(
        program_between(joint.trace, ports, made, replays=replays),
        program_between(joint.trace, all_ports, backward.outputs, replays=replays),
        tuple(range(len(ports))),
        any(map(is_compared, made)),
        joint.produced,
    )


def _known_bytes(tensor: tf.Tensor) -> int:
    return known_elements(tensor) * tensor.dtype.size
