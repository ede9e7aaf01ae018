"""Steps 3 and 4 of the engine: partition the joint graph into two programs, and check both.

``residual_choice`` decides what is saved between them. The backward program is then rewritten by
the passes of the target.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from ..capture.joint_graph import JointGraph
from ..capture.trace import Port
from ..graph.annotations import alias_source, aliases, is_alternative, is_identity
from ..graph.dataflow import kinds, pick, port_refs, tensor_refs
from ..graph.op_sets import CHEAP, ELEMENTWISE, LOOPS, is_compared
from ..graph.sparse_gradients import Gradient
from ..graph.target_ops import CheapReplay
from ..policies import Decision, Policy, save_everything
from .program import GraphProgram, program_between
from .program_slice import given_refs, operations_between
from .renames import Renames
from .residual_choice import read_by_equality, residuals, saved_values
from .stages import Barrier, Stage, with_awaited, write_stages


@dataclass(frozen=True, eq=False)
class Partition:
    """The forward and the backward program of a function.

    ``forward`` takes the ports of the trace and returns the outputs, then the saved values.
    ``backward`` takes the ports, the saved values, the outputs whose numbers are in
    ``kept_by_caller``, then the output gradients. It returns the ``gradient_tensors`` of the joint
    graph. ``rows`` takes the same without the output gradients, and returns the rows of sparse
    gradients; it is None where there are none. ``offloaded`` are the numbers of the saved values
    that wait on the host.

    ``stages`` are the backward program as it is written for the target. The gradients that copies
    wait for follow its results. ``cheap`` is set if the target's own policy decided and only
    arithmetic is repeated (see ``target_ops.fenced``).
    """

    joint: JointGraph
    forward: GraphProgram
    backward: GraphProgram
    saved: tuple[tf.Tensor, ...]
    offloaded: frozenset[int]
    kept_by_caller: tuple[int, ...]
    stages: tuple[Stage, ...]
    rows: GraphProgram | None = None
    cheap: CheapReplay | None = None
    # Made on first use: the derivative and the parts for some outputs (see ``higher_order``), and
    # what runs it eagerly.
    derivatives: list[Partition] = field(default_factory=list, repr=False)
    for_outputs: dict[tuple[int, ...], Partition] = field(default_factory=dict, repr=False)
    eager: dict[str, Any] = field(default_factory=dict, repr=False)
    loops: dict[Any, Any] = field(default_factory=dict, repr=False)

    def backpropagate(self, values: Sequence[tf.Tensor]) -> list[Gradient | None]:
        """Write the backward program, fed by ``values``; return one gradient or None per port."""
        rows = self.write_rows(values)
        return self.joint.assemble(self.write_gradient(values), rows, values)

    def write_rows(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the rows of the sparse gradients.

        ``values`` may end before the output gradients.
        """
        return self.rows.write(values[: len(self.rows.ports)]) if self.rows else []

    @property
    def prologue(self) -> GraphProgram | None:
        """The stage in front of the fence, if there is one."""
        first = self.stages[0]
        return first.program if first.barrier is Barrier.SECTION_FENCE else None

    def write_gradient(
        self, values: Sequence[tf.Tensor], begun: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        """Write the backward program, fed by ``values``; return the results of its last stage.

        ``begun`` are the results of the ``prologue`` if that is written.
        """
        ports, stages = self.backward.ports, self.stages
        if begun:
            ports, stages = (*ports, *zip(stages[0].program.outputs)), stages[1:]
        like = pick(values, self.joint.produced)
        return write_stages(stages, ports, [*values, *begun], like=like)

    def rebound_to(
        self,
        variables: Sequence[tf.Variable],
        layers: Mapping[str, str],
    ) -> Partition:
        """Return the partition of a function that differs in its variables alone.

        ``variables`` are the variables of that function, in the order of the trace. ``layers`` are
        the new names of layers, after which operations are named. Nothing is traced again. All
        handles must be those of variables.
        """
        renames = Renames(layers)
        handles: dict[int, tf.Tensor] = {}
        for ours, theirs in zip(self.joint.trace.variables, variables):
            handles[id(ours.handle)] = theirs.handle

        def standing(program: Any) -> Any:
            return program.rebound_to(handles, renames)

        given = []
        for placeholder, external in self.joint.trace.handles:
            given.append((placeholder, handles[id(external)]))
        return replace(
            self,
            joint=replace(
                self.joint,
                trace=replace(self.joint.trace, variables=tuple(variables), handles=tuple(given)),
            ),
            forward=standing(self.forward),
            backward=standing(self.backward),
            stages=tuple(map(standing, self.stages)),
            rows=self.rows and standing(self.rows),
            derivatives=[],
            for_outputs={},
            eager={},
            loops={},
        )

    def under(self, policy: Policy | None) -> Partition:
        """Return the partition of the same function by another ``policy``."""
        return partition(self.joint, policy, kept_by_caller=self.kept_by_caller)

    @property
    def read_by_backward(self) -> set[Any]:
        """References to all tensors that the backward pass reads."""
        read: set[Any] = set()
        for program in (self.backward, *([self.rows] if self.rows else [])):
            read.update(port_refs(map(program.inputs_of, program.operations)))
            read.update(tensor_refs(program.outputs))
        return read

    @property
    def replayed(self) -> tuple[tf.Operation, ...]:
        """The forward operations that the backward program repeats."""
        backward = self.joint.backward
        forward = itertools.filterfalse(backward.__contains__, self.backward.operations)
        return tuple(op for op in forward if op.type != "Const")


def partition(
    joint: JointGraph,
    policy: Policy | None,
    *,
    kept_by_caller: Sequence[int] = (),
    replays_all: bool = False,
) -> Partition:
    """Partition ``joint`` by ``policy`` (see ``policies``) into two programs, and check them.

    Without a policy the target's own decides; without that, all residuals are saved.
    ``kept_by_caller`` are the numbers of the outputs that the caller keeps until the backward pass
    anyway. With ``replays_all`` only what may not run twice is saved, whatever the policy, scopes
    and shapes. Raises InvalidProgramError if a program does not fit together.
    """
    trace = joint.trace
    # A compiler need not recompute elements to the last digit, so an output that is found by
    # equality among them cannot be the caller's copy.
    is_kept = [not read_by_equality(trace.outputs[o], joint) for o in kept_by_caller]
    kept_by_caller = tuple(itertools.compress(kept_by_caller, is_kept))
    given = given_refs(trace.ports, trace.handles)
    kept = tuple(port_of(trace.outputs[o], given) for o in kept_by_caller)
    incoming = tuple(zip(joint.incoming))

    gradients, rows = joint.gradient_tensors, tuple(joint.rows.values())
    available = given | port_refs((*kept, *incoming))
    is_targets_own = policy is None
    if policy is None:
        # Without the rows of sparse gradients, which are no cost to weigh.
        needed = residuals(joint, gradients, available)
        policy = trace.target.first("policy", needed, available) or save_everything
    decided, replays = saved_values(joint, policy, joint.ends, available, replays_all=replays_all)
    saved = tuple(map(operator.itemgetter(0), decided))

    # Saved values are ports of the backward program, with all their aliases.
    forward = _forward_program(joint, saved)
    forward_ports = (*trace.ports, *(port_of(t, given) for t in saved), *kept)
    backward_ports = (*forward_ports, *incoming)
    backward = program_between(
        trace, backward_ports, gradients, always=joint.effects, replays=replays
    )
    offloaded = set()
    for number, (_, decision) in enumerate(decided):
        if decision is Decision.OFFLOAD:
            offloaded.add(number)
    found = Partition(
        joint,
        forward,
        backward,
        saved,
        frozenset(offloaded),
        kept_by_caller,
        (Stage(backward),),
        rows=program_between(trace, forward_ports, rows, replays=replays) if rows else None,
    )
    if joint.effects:
        # Effects of several stages could run in another order.
        return found
    cheap = _cheap(found) if is_targets_own else None
    splits = trace.target.at("backward")
    if cheap:
        behind = range(len(forward_ports), len(backward.ports))
        backward, awaited = with_awaited(backward, cheap.read, behind)
        cheap = replace(cheap, awaited=awaited)
    else:
        # There is no branch around a cheap replay, so nothing needs to run before it.
        splits = [*trace.target.at("prologue"), *splits]
    stages: tuple[Stage, ...] = (Stage(backward),)
    for split in splits:
        stages = (*stages[:-1], *split(stages[-1].program, joint))
    return replace(found, stages=stages, cheap=cheap)


def _forward_program(joint: JointGraph, saved: Sequence[tf.Tensor]) -> GraphProgram:
    """Return the program that returns the outputs and ``saved``, and has all side effects."""
    trace = joint.trace
    targets = (*trace.outputs, *saved)
    effects = list(itertools.filterfalse(trace.purity.is_pure, joint.forward_operations))
    program = program_between(trace, trace.ports, targets, always=effects)

    # An alternative that needs no further loop takes the place of the value itself.
    replays = set()
    for operation in filter(is_alternative, program.operations):
        if _is_made_anyway(operation, program.operations, joint):
            replays.add(operation)
    if not replays:
        return program
    return program_between(trace, trace.ports, targets, always=effects, replays=frozenset(replays))


def _cheap(part: Partition) -> CheapReplay | None:
    """Return what a replay of elementwise arithmetic alone begins and ends with, else None.

    Also None if elements of its inputs are found by equality. And None if it contains a loop, such
    as that of a recurrent layer, and the target would hold more memory around it.
    """
    replayed, ports, trace = frozenset(part.replayed), part.backward.ports, part.joint.trace
    for operation in replayed:
        # Identities carry custom gradients, such as that of silu.
        if operation.type in CHEAP | ELEMENTWISE or is_identity(operation):
            continue
        # Whole numbers are few, as positions and sizes are.
        if not all(t.dtype.is_integer or t.dtype.is_bool for t in operation.outputs):
            return None
    if any(map(is_compared, itertools.chain(*ports))):
        return None
    if trace.target.holds_around_loops and not kinds(part.backward.operations).isdisjoint(LOOPS):
        return None

    def is_replayed_from(port: Port) -> bool:
        return any(not replayed.isdisjoint(t.consumers()) for t in port)

    read = tuple(n for n, port in enumerate(ports) if is_replayed_from(port))
    variables = range(len(trace.arguments), len(trace.arguments) + len(trace.variables))
    produced = part.joint.produced
    handed_on: list[int] = []
    finished: list[int] = []
    for number, port in enumerate(produced):
        if port in part.joint.gradient_unused:
            continue
        (finished if port in variables else handed_on).append(number)
    return CheapReplay(read, tuple(handed_on), tuple(finished))


def _is_made_anyway(
    mark: tf.Operation, operations: Sequence[tf.Operation], joint: JointGraph
) -> bool:
    """Whether the alternative of an ``inference_alternative`` needs no further loop.

    The loops that run anyway are among ``operations``.
    """
    _, alternative, *given = mark.inputs
    # A ``replay_alternative``, which is for the backward pass.
    if given:
        return False
    needed = operations_between([alternative], joint.trace.ports, joint.trace.handles)
    return all(op in operations for op in needed if op.type in LOOPS)


def port_of(value: tf.Tensor, given: set[Any]) -> Port:
    """Return ``value`` and its aliases, except aliases that are given anyway."""
    return tuple(t for t in aliases(alias_source(value)) if t is value or t.ref() not in given)
