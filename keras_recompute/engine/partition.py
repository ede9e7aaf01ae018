"""Steps 3 and 4 of the engine: split the joint graph into a forward and a backward program, and check both.

What is saved between them is decided in ``decisions``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from .cost import LOOPS, known_elements
from .decisions import found_by_equality, saved_values
from .joint import Joint
from .marks import copies, equal_values, is_alternative
from .passes.fence import fenced
from .passes.min_cut import all_but_cheap
from .passes.prevent_cse import OperandsApart, with_operands_apart
from .policies import Decision, Policy, save_everything
from .program import Program, operations_between, program_between
from .renames import Renames
from .trace import Port

_WORTH = 0.8  # a backward program is run in two stages if that keeps at most this part of what it reads


@dataclass(frozen=True, eq=False)
class Partition:
    """The two programs of a function.

    ``forward`` takes the ports of the trace and returns the outputs, then the saved values. ``backward`` takes the ports,
    the saved values, the outputs whose numbers are in ``at_hand``, then the output gradients; it returns the
    ``gradients`` that are not None, in order. ``offloaded`` are the numbers of the saved values that wait on the host.

    ``stages`` are the backward program in two, where that takes less memory under XLA: the first replays what the second
    needs and cannot make again at next to no cost (see ``passes.min_cut``). The second takes those values behind the others.
    """

    joint: Joint
    forward: Program
    backward: Program
    saved: tuple[tf.Tensor, ...]
    offloaded: frozenset[int]
    at_hand: tuple[int, ...]
    stages: tuple[Program, Program] | None = None
    higher: list[Partition] = field(default_factory=list, repr=False)  # what ``higher.derivative`` made
    _apart: list[Program | OperandsApart] = field(default_factory=list, repr=False)  # the gradient as XLA is given it

    def backpropagate(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Write the backward program, fed by ``values``, into the default graph and return the gradients that are not None."""
        if self.stages is None:
            return self._write_gradient(self.backward, values)
        replay, gradient = self.stages
        n = len(self.backward.ports)
        made = replay.write(values[: len(replay.ports)])
        like = [value for value, g in zip(values, self.joint.gradients) if g is not None]
        return fenced(
            functools.partial(self._write_gradient, gradient),
            [*values[:n], *made],
            after=made,
            like=like,
            target=self.joint.trace.target,
        )

    def standing_for(self, variables: Sequence[tf.Variable], handles: Mapping[int, tf.Tensor], renames: Renames) -> Partition:
        """Return the partition of a function that differs in its variables alone.

        ``variables`` are those of that function, in the order of the trace, ``handles`` their handles by the identities of
        the handles of this one's, and ``renames`` says what its operations are called. Nothing is traced again.
        """

        def standing(program: Any) -> Any:
            return program.standing_for(handles, renames)

        given = tuple((placeholder, handles[id(external)]) for placeholder, external in self.joint.trace.handles)
        return replace(
            self,
            joint=replace(self.joint, trace=replace(self.joint.trace, variables=tuple(variables), handles=given)),
            forward=standing(self.forward),
            backward=standing(self.backward),
            stages=None if self.stages is None else (standing(self.stages[0]), standing(self.stages[1])),
            higher=[],
            _apart=[standing(self._prepared())] if self._prevents_cse else [],
        )

    def _write_gradient(self, gradient: Program, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return (self._prepared() if self._prevents_cse else gradient).write(values)

    @property
    def _prevents_cse(self) -> bool:
        return "prevent_cse" in self.joint.trace.target.passes

    def _prepared(self) -> Program | OperandsApart:
        if not self._apart:
            gradient = self.backward if self.stages is None else self.stages[1]
            self._apart.append(with_operands_apart(gradient, self.joint.backward))
        return self._apart[0]

    @property
    def replayed(self) -> tuple[tf.Operation, ...]:
        """The forward operations that the backward program repeats."""
        return tuple(op for op in self.backward.operations if op not in self.joint.backward and op.type != "Const")


def partition(joint: Joint, policy: Policy | None, *, at_hand: Sequence[int] = (), replays_all: bool = False) -> Partition:
    """Split ``joint`` by ``policy`` (see ``policies``) into two programs that have passed the check.

    Without a policy all is saved that the gradient could not make again at next to no cost (see ``passes.min_cut``).
    ``at_hand`` are the numbers of the outputs that the caller keeps until the backward pass for reasons of its own. With
    ``replays_all`` nothing is saved but what may not run twice, whatever the policy, scopes and shapes. Raises
    InvalidProgramError where a program does not fit together.
    """
    trace = joint.trace
    at_hand = tuple(o for o in at_hand if not found_by_equality(trace.outputs[o], joint))
    given = {t.ref() for port in trace.ports for t in port} | {placeholder.ref() for placeholder, _ in trace.handles}
    kept = tuple(_port_of(trace.outputs[o], given) for o in at_hand)
    incoming = tuple((dy,) for dy in joint.output_gradients if dy is not None)

    gradients = [g for g in joint.gradients if g is not None]
    available = given | {t.ref() for port in (*kept, *incoming) for t in port}
    if policy is None:
        policy = all_but_cheap(_residuals(joint, gradients, available), available)
    decided, replays = saved_values(joint, policy, gradients, available, replays_all=replays_all)
    saved = tuple(value for value, _ in decided)
    effects = [op for op in trace.graph.get_operations() if op not in joint.backward and not trace.purity.is_pure(op)]
    targets = (*trace.outputs, *saved)
    forward = program_between(trace, trace.ports, targets, always=effects)
    operations = forward.operations
    made_anyway = frozenset(op for op in operations if is_alternative(op) and _is_made_anyway(op, operations, joint))
    if made_anyway:
        forward = program_between(trace, trace.ports, targets, always=effects, replays=made_anyway)
    backward_ports = (*trace.ports, *(_port_of(t, given) for t in saved), *kept, *incoming)
    backward = program_between(trace, backward_ports, tuple(gradients), replays=replays)
    offloaded = frozenset(n for n, (_, decision) in enumerate(decided) if decision is Decision.OFFLOAD)
    stages = _stages(joint, backward, incoming) if "staging" in trace.target.passes else None
    return Partition(joint, forward, backward, saved, offloaded, at_hand, stages)


def _residuals(joint: Joint, gradients: Sequence[tf.Tensor], available: set[Any]) -> list[tf.Tensor]:
    """Return all forward values that ``gradients`` need and that are not ``available``."""
    return [value for value, _ in saved_values(joint, save_everything, gradients, available)[0]]


def _stages(joint: Joint, backward: Program, incoming: Sequence[Port]) -> tuple[Program, Program] | None:
    """Return ``backward`` as a replay and a gradient of its results, or None where that would keep as much as one program."""
    available = {t.ref() for port in backward.ports for t in port} | {placeholder.ref() for placeholder, _ in backward.handles}
    needed = _residuals(joint, backward.outputs, available)
    decided, replays = saved_values(joint, all_but_cheap(needed, available), backward.outputs, available)
    made = tuple(value for value, _ in decided)
    is_plain = all(value.dtype not in (tf.variant, tf.resource) for value in made)  # a loop's lists stay in one program
    keeps_less = sum(map(_known_bytes, made)) <= _WORTH * sum(map(_known_bytes, needed))
    if not made or not is_plain or not keeps_less or replays != backward.replays:
        return None
    ports = backward.ports[: len(backward.ports) - len(incoming)]
    given = {t.ref() for port in ports for t in port}
    replay = program_between(joint.trace, ports, made, replays=replays)
    all_ports = (*backward.ports, *(_port_of(value, given) for value in made))
    return replay, program_between(joint.trace, all_ports, backward.outputs, replays=replays)


def _known_bytes(tensor: tf.Tensor) -> int:
    return known_elements(tensor) * tensor.dtype.size


def _is_made_anyway(mark: tf.Operation, operations: Sequence[tf.Operation], joint: Joint) -> bool:
    """Whether the alternative of a ``cheaper_alone`` needs no loop but those among ``operations``."""
    _, alternative, *given = mark.inputs
    if given:  # a ``cheaper_replay``, which is for the backward pass
        return False
    needed = operations_between([alternative], joint.trace.ports, joint.trace.handles)
    return all(op in operations for op in needed if op.type in LOOPS)


def _port_of(value: tf.Tensor, given: set[Any]) -> Port:
    """Return ``value`` and its copies, except those that are given anyway."""
    return tuple(t for t in copies(equal_values(value)[-1]) if t is value or t.ref() not in given)
