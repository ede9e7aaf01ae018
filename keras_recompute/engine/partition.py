"""Steps 3 and 4 of the engine: split the joint graph into a forward and a backward program, and check both.

What is saved between them is decided in ``residual_choice``. The backward program is then handed to the passes of the target.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from .annotations import alias_source, aliases, is_alternative
from .joint_graph import JointGraph
from .op_sets import CHEAP, ELEMENTWISE, LOOPS, is_compared
from .policies import Decision, Policy, save_everything
from .program import GraphProgram, operations_between, program_between
from .renames import Renames
from .residual_choice import read_by_equality, residuals, saved_values
from .sparse_gradients import Gradient
from .target_ops import CheapReplay
from .trace import Port
from .two_stage_program import Written, split_last_stage


@dataclass(frozen=True, eq=False)
class Partition:
    """The two programs of a function.

    ``forward`` takes the ports of the trace and returns the outputs, then the saved values. ``backward`` takes the ports,
    the saved values, the outputs whose numbers are in ``kept_by_caller``, then the output gradients; it returns the
    ``gradient_tensors`` of the joint graph. ``rows`` takes all of these but the output gradients, and returns the rows of
    sparse gradients; it is None where there are none. ``offloaded`` are the numbers of the saved values that wait on the host.

    ``gradient`` is the backward program as it is written for the target: it takes and returns the same. Where there is
    ``prologue``, it takes the results of that in place of the output gradients (see ``write_prologue``). ``cheap`` says more of
    it if it repeats nothing but arithmetic, which the target itself decided (see ``target_ops.fenced``).
    """

    joint: JointGraph
    forward: GraphProgram
    backward: GraphProgram
    saved: tuple[tf.Tensor, ...]
    offloaded: frozenset[int]
    kept_by_caller: tuple[int, ...]
    gradient: Written
    rows: GraphProgram | None = None
    prologue: GraphProgram | None = None
    cheap: CheapReplay | None = None
    # Made on first use: the derivative and the parts for some outputs (see ``higher_order``), and what runs it eagerly.
    higher: list[Partition] = field(default_factory=list, repr=False)
    for_outputs: dict[tuple[int, ...], Partition] = field(default_factory=dict, repr=False)
    eager: dict[str, Any] = field(default_factory=dict, repr=False)
    loops: dict[Any, Any] = field(default_factory=dict, repr=False)

    def backpropagate(self, values: Sequence[tf.Tensor]) -> list[Gradient | None]:
        """Write the backward program, fed by ``values``, into the default graph; return the gradient of each port, or None."""
        rows = self.write_rows(values)
        return self.joint.assemble(self.write_gradient(self.write_prologue(values)), rows, values)

    def write_rows(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the rows of the sparse gradients; ``values`` may end before the output gradients."""
        return self.rows.write(values[: len(self.rows.ports)]) if self.rows else []

    def write_prologue(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return ``values``, with what of the backward program needs no fence written into the default graph.

        That makes other output gradients, which ``gradient`` takes.
        """
        made = self.prologue.write(values) if self.prologue else []
        return [*values[: len(values) - len(made)], *made]

    def write_gradient(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Write what is left of the backward program, fed by what ``write_prologue`` returned."""
        return self.gradient.write(values)

    def rebound_to(self, variables: Sequence[tf.Variable], handles: Mapping[int, tf.Tensor], renames: Renames) -> Partition:
        """Return the partition of a function that differs in its variables alone.

        ``variables`` are those of that function, in the order of the trace, ``handles`` their handles by the identities of
        the handles of this one's, and ``renames`` says what its operations are called. Nothing is traced again.
        """

        def standing(program: Any) -> Any:
            return program.rebound_to(handles, renames)

        given = tuple((placeholder, handles[id(external)]) for placeholder, external in self.joint.trace.handles)
        return replace(
            self,
            joint=replace(self.joint, trace=replace(self.joint.trace, variables=tuple(variables), handles=given)),
            forward=standing(self.forward),
            backward=standing(self.backward),
            gradient=standing(self.gradient),
            rows=self.rows and standing(self.rows),
            prologue=self.prologue and standing(self.prologue),
            higher=[],
            for_outputs={},
            eager={},
            loops={},
        )

    @property
    def replayed(self) -> tuple[tf.Operation, ...]:
        """The forward operations that the backward program repeats."""
        return tuple(op for op in self.backward.operations if op not in self.joint.backward and op.type != "Const")


def partition(
    joint: JointGraph, policy: Policy | None, *, kept_by_caller: Sequence[int] = (), replays_all: bool = False
) -> Partition:
    """Split ``joint`` by ``policy`` (see ``policies``) into two programs that have passed the check.

    Without a policy the target's own holds, or all is saved that a gradient reads.
    ``kept_by_caller`` are the numbers of the outputs that the caller keeps until the backward pass for reasons of its own. With
    ``replays_all`` nothing is saved but what may not run twice, whatever the policy, scopes and shapes. Raises
    InvalidProgramError where a program does not fit together.
    """
    trace = joint.trace
    kept_by_caller = tuple(o for o in kept_by_caller if not read_by_equality(trace.outputs[o], joint))
    given = {t.ref() for port in trace.ports for t in port} | {placeholder.ref() for placeholder, _ in trace.handles}
    kept = tuple(port_of(trace.outputs[o], given) for o in kept_by_caller)
    incoming = tuple((dy,) for dy in joint.output_gradients if dy is not None)

    gradients, rows = joint.gradient_tensors, tuple(joint.rows.values())
    available = given | {t.ref() for port in (*kept, *incoming) for t in port}
    is_targets_own = policy is None
    if policy is None:
        needed = residuals(joint, gradients, available)  # but for rows, which are no cost to weigh
        policy = trace.target.first("policy", needed, available) or save_everything
    needed_for = [*gradients, *rows]
    decided, replays = saved_values(joint, policy, needed_for, available, replays_all=replays_all)
    saved = tuple(value for value, _ in decided)
    effects = [op for op in trace.graph.get_operations() if op not in joint.backward and not trace.purity.is_pure(op)]
    targets = (*trace.outputs, *saved)
    forward = program_between(trace, trace.ports, targets, always=effects)
    operations = forward.operations
    made_anyway = frozenset(op for op in operations if is_alternative(op) and _is_made_anyway(op, operations, joint))
    if made_anyway:
        forward = program_between(trace, trace.ports, targets, always=effects, replays=made_anyway)
    forward_ports = (*trace.ports, *(port_of(t, given) for t in saved), *kept)
    backward = program_between(trace, (*forward_ports, *incoming), gradients, replays=replays)
    offloaded = frozenset(n for n, (_, decision) in enumerate(decided) if decision is Decision.OFFLOAD)
    found = Partition(joint, forward, backward, saved, offloaded, kept_by_caller, backward)
    if rows:
        found = replace(found, rows=program_between(trace, forward_ports, rows, replays=replays))
    cheap = _cheap(found) if is_targets_own else None
    prologue = None if cheap else trace.target.first("prologue", backward, joint)  # there is no branch around what is cheap
    gradient: Written = prologue.rest if prologue else backward
    for split in trace.target.at("backward"):
        gradient = split_last_stage(gradient, functools.partial(split, joint=joint))
    return replace(found, gradient=gradient, prologue=prologue and prologue.first, cheap=cheap)


def _cheap(part: Partition) -> CheapReplay | None:
    """Return what the backward program begins and ends with if it repeats arithmetic on elements and nothing else.

    None, too, if elements of what it is given are found by equality, or where a loop stands in it, such as that of a recurrent
    layer, around which the target would hold more.
    """
    replayed, ports, trace = frozenset(part.replayed), part.backward.ports, part.joint.trace
    dear = (t for op in replayed if op.type not in CHEAP | ELEMENTWISE for t in op.outputs)
    is_any_compared = any(is_compared(t) for port in ports for t in port)
    is_held = trace.target.holds_around_loops and any(op.type in LOOPS for op in part.backward.operations)
    if is_held or is_any_compared or not all(t.dtype.is_integer or t.dtype.is_bool for t in dear):
        return None
    read = tuple(n for n, port in enumerate(ports) if any(op in replayed for t in port for op in t.consumers()))
    variables = range(len(trace.arguments), len(trace.arguments) + len(trace.variables))
    produced = part.joint.produced
    handed_on = tuple(n for n, port in enumerate(produced) if port not in variables)
    finished = tuple(n for n, port in enumerate(produced) if port in variables and port not in part.joint.gradient_unused)
    return CheapReplay(read, handed_on, finished)


def _is_made_anyway(mark: tf.Operation, operations: Sequence[tf.Operation], joint: JointGraph) -> bool:
    """Whether the alternative of a ``inference_alternative`` needs no loop but those among ``operations``."""
    _, alternative, *given = mark.inputs
    if given:  # a ``replay_alternative``, which is for the backward pass
        return False
    needed = operations_between([alternative], joint.trace.ports, joint.trace.handles)
    return all(op in operations for op in needed if op.type in LOOPS)


def port_of(value: tf.Tensor, given: set[Any]) -> Port:
    """Return ``value`` and its copies, except those that are given anyway."""
    return tuple(t for t in aliases(alias_source(value)) if t is value or t.ref() not in given)
