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
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ...backends import CPU, backend_now
from ...graph_traversal import reachable
from ...seams.tensorflow.operations import redirect_readers
from ..dataflow import operations_before, port_refs
from ..joint_graph import JointGraph
from ..op_sets import is_compared, known_elements
from ..partition import port_of
from ..program import GraphProgram, program_between
from ..program_slice import given_refs
from ..residual_choice import residuals, saved_values
from ..target_ops import fenced
from ..two_stage_program import TwoStageProgram
from .fence import opaque_copies
from .min_cut import min_cut_policy


@dataclass(frozen=True, eq=False)
class StagedRecomputation(TwoStageProgram):
    """A program whose ``rest`` reads the results of ``first`` as opaque copies.

    It is in a branch if ``is_compared``: then ``rest`` finds elements of a result by equality, so
    that it must be computed once. The numbers in ``like`` are the ports whose gradients ``rest``
    returns.

    ``awaited`` has, for each result of ``first``, the number of a result of ``rest``: the gradient
    that it is first used with. The copy of the result waits for that gradient. Otherwise XLA's own
    scheduler on a CPU would make all copies at once. If it is None, the copy waits for the incoming
    gradients.
    """

    is_compared: bool
    like: tuple[int, ...]
    awaited: tuple[int | None, ...]

    def write(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Do what ``GraphProgram.write`` does for the whole program."""
        made = self.first.write([values[number] for number in self.read])
        if self.is_compared:
            like = [values[number] for number in self.like]
            return fenced(
                self.rest.write, [*values, *made], after=made, like=like, target=self.first.target
            )
        incoming = values[len(self.read) :]
        graph = tf.compat.v1.get_default_graph()
        waits = any(number is not None for number in self.awaited)
        older = frozenset(graph.get_operations() if waits else ())
        copies = [
            opaque_copies([value], after=incoming)[0] if number is None else tf.identity(value)
            for value, number in zip(made, self.awaited)
        ]  # fmt: skip
        results = self.rest.write([*values, *copies])

        def newer_before(operation: tf.Operation) -> list[tf.Operation]:
            return [each for each in operations_before(operation) if each not in older]

        for value, number, copy in zip(made, self.awaited, copies):
            if number is not None:
                # In a higher derivative the gradient may depend on the copy by way of another pass.
                is_cyclic = copy.op in reachable([results[number].op], newer_before)
                (late,) = opaque_copies([value], after=incoming if is_cyclic else [results[number]])
                redirect_readers(late, instead_of=copy, readers=copy.consumers())
        return results[: len(self.like)]


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
    made = tuple(value for value, _ in decided)
    is_plain = all(
        value.dtype not in (tf.variant, tf.resource) for value in made
    )  # a loop's lists stay in one program
    keeps_less = sum(map(_known_bytes, made)) < sum(map(_known_bytes, needed))
    if not made or not is_plain or not keeps_less or replays != backward.replays:
        return backward
    if joint.rows and any(map(is_compared, made)):
        return backward  # the values of a sparse gradient are not like the port that they belong to
    incoming = len(joint.incoming)
    ports = backward.ports[: len(backward.ports) - incoming]
    given = port_refs(ports)
    all_ports = (*backward.ports, *(port_of(value, given) for value in made))
    rest = program_between(joint.trace, all_ports, backward.outputs, replays=replays)
    compared = any(map(is_compared, made))
    # GPUs and TPUs take more memory where copies wait (benchmarks/notes/updates.md).
    waits = not compared and backend_now() == CPU
    partners = _first_partners(rest, len(made), incoming) if waits else [None] * len(made)
    awaited = {partner.ref(): partner for partner in partners if partner is not None}
    if awaited:
        outputs = [*backward.outputs, *awaited.values()]
        rest = program_between(joint.trace, all_ports, outputs, replays=replays)
    numbers = dict(zip(awaited, range(len(backward.outputs), len(rest.outputs))))
    return StagedRecomputation(
        program_between(joint.trace, ports, made, replays=replays),
        rest,
        tuple(range(len(ports))),
        compared,
        joint.produced,
        tuple(None if partner is None else numbers[partner.ref()] for partner in partners),
    )


def _first_partners(rest: GraphProgram, made: int, incoming: int) -> list[tf.Tensor | None]:
    """Return the gradient that each of the last ``made`` ports of ``rest`` is first used with.

    A port is used by what reads it or a value computed from it. None where the gradient is one of
    the ``incoming`` ones, whose ports come before. Within ``rest`` the gradient cannot depend on
    the port: an earlier operation would have used both.
    """
    begin = len(rest.ports) - made
    gradients = port_refs(rest.ports[begin - incoming : begin])
    arrived = frozenset(gradients)
    # Of each tensor that depends on no gradient: the ports that it follows from, as bits.
    origins = {t.ref(): 1 << n for n, port in enumerate(rest.ports[begin:]) for t in port}
    found: list[tf.Tensor | None] = [None] * made
    waiting = (1 << made) - 1
    for operation in rest.operations:
        inputs = rest.inputs_of(operation)
        origin = functools.reduce(operator.or_, (origins.get(t.ref(), 0) for t in inputs), 0)
        partners = [t for t in inputs if t.ref() in gradients]
        if partners:
            gradients.update(t.ref() for t in operation.outputs)
            partner = max(partners, key=known_elements)
            for number in range(made):
                if origin & waiting & 1 << number and partner.ref() not in arrived:
                    found[number] = partner
            waiting &= ~origin
        elif origin:
            origins.update((t.ref(), origin) for t in operation.outputs)
    return found


def _known_bytes(tensor: tf.Tensor) -> int:
    return known_elements(tensor) * tensor.dtype.size
