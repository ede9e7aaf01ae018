"""Step 5 of the engine for equal sections: one copy of the two programs, as the bodies of two loops.

Sections that differ at most in where they slice their input share their forward and their backward program. Program
size, compile time and peak then do not grow with their number (Poplar calls this function outlining), and since a
compiler never moves work out of a loop's body into its surroundings, nothing of one section outlives it except

* *boundary states*: what one section hands to the next, stored per boundary: the checkpoints;
* *saved* values, where the policy or the purity rule asks for them, stored per section;
* what the caller asks for: a section's outputs joined along an axis, stacked, or the last ones alone.

The loops own the slicing. A slice taken outside would be alive from the forward to the backward pass, and the gradient
of a slice taken by the section itself would be as large as the whole input at every turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import tensorflow as tf

from ..phases import backward_scope, forward_scope
from .boundaries import Boundaries
from .gradient import Tensors, with_both_gradients
from .lower import recalled
from .marks import replay_source
from .once import plus, times
from .partition import Partition
from .passes import target_now
from .pieces import Dimension, Pieces, embed, flows, with_flows
from .program import in_default_graph
from .target import Target
from .undifferentiable import refusing, with_zeros
from .writing import taken, written, zeros, zeros_like


@dataclass(frozen=True)
class Carried:
    """An argument that section s receives from section s - 1: that section's output number ``output``."""

    output: int


@dataclass(frozen=True)
class Sliced:
    """An argument of which section s takes the steps from ``start + s * length`` along ``axis``."""

    axis: int
    start: int
    length: int


@dataclass(frozen=True)
class Shared:
    """An argument that is the same for all sections."""


@dataclass(frozen=True)
class Last:
    """Ask for output number ``output`` of the last section."""

    output: int


@dataclass(frozen=True)
class Joined:
    """Ask for output number ``output`` of all sections, concatenated along ``axis``, or stacked where it is None."""

    output: int
    axis: int | None


Role = Union[Carried, Sliced, Shared]
Request = Union[Last, Joined]


def outline(
    part: Partition,
    arguments: Sequence[tf.Tensor],
    *,
    count: int,
    roles: Sequence[Role],
    requests: Sequence[Request],
    batch: Dimension,
    name: str,
    keeps_states: bool = False,
) -> list[tf.Tensor]:
    """Write ``count`` consecutive calls of the partitioned section as one loop; return one tensor per request.

    ``arguments`` has one tensor per argument of the section: the first section's value where the role is Carried, the
    whole tensor where it is Sliced. ``batch`` is the size of first dimensions that are not known while tracing (see
    ``can_be_outlined``). With ``keeps_states`` the states between sections are sources of a replay where the loop stands
    in a function that is recomputed itself (see ``marks.replay_source``).
    """
    loop = _Loop(part, count, tuple(roles), tuple(requests), batch, name)
    refused = part.joint.refused
    values = refusing([in_default_graph(value) for value in part.joint.trace.values(arguments)], refused)
    n_results = len(requests)
    stores: list[Any] = []

    def forward() -> Sequence[tf.Tensor]:
        results, *stores[:] = loop.forward(values, target_now())
        if keeps_states:
            stores[0] = [replay_source(b.whole(store)) for b, store in zip(loop.boundaries, stores[0])]
        return [*results, *flows(stores)]

    def gradient(values: Tensors, made: Tensors, result_gradients: Sequence[Any]) -> list[tf.Tensor | None]:
        found = loop.backward(values, with_flows(stores, made[n_results:]), result_gradients, target_now())
        return with_zeros(found, values, refused)

    def again(values: Tensors, made: Tensors) -> list[tf.Tensor]:
        return loop.recalled(values, made[:n_results], with_flows(stores, made[n_results:]), target_now())

    return with_both_gradients(forward, gradient, again, inputs=values, count=n_results, name=name)


def section_spec(argument: tf.Tensor, role: Role) -> tf.TensorSpec:
    """Return the type and shape in which a section sees ``argument``: of a Sliced one, its share."""
    shape = argument.shape.as_list()
    if isinstance(role, Sliced):
        shape[role.axis] = role.length
    return tf.TensorSpec(shape, argument.dtype)


def can_be_outlined(part: Partition, roles: Sequence[Role] = ()) -> bool:
    """Whether a loop can store what the section hands on: plain tensors, unknown at most in their first dimension.

    And whether the first section takes the type that the others are handed, by ``roles``: in mixed precision it may take the
    model's float32 inputs, and hand on bfloat16.
    """
    trace = part.joint.trace
    carried = [(trace.differentiable[p], trace.outputs[r.output]) for p, r in enumerate(roles) if isinstance(r, Carried)]
    if any(taken.dtype != handed_on.dtype for taken, handed_on in carried):
        return False
    stored = (*trace.outputs, *part.saved)
    return all(t.dtype != tf.variant and t.shape.rank is not None and None not in t.shape.as_list()[1:] for t in stored)


class _Loop:
    def __init__(
        self,
        part: Partition,
        count: int,
        roles: tuple[Role, ...],
        requests: tuple[Request, ...],
        batch: Dimension,
        name: str,
    ) -> None:
        trace = part.joint.trace
        self.batch = batch
        self.part, self.count, self.requests, self.name = part, count, requests, name
        self.roles = roles + (Shared(),) * (len(trace.ports) - len(roles))
        # port number -> number of the output that feeds it in the next section
        self.carried = {p: r.output for p, r in enumerate(self.roles) if isinstance(r, Carried)}
        self.boundaries = [
            Boundaries(count, self._shape(trace.outputs[o]), trace.outputs[o].dtype) for o in self.carried.values()
        ]
        self.saved = [self._pieces(count, value) for value in part.saved]
        asked = [r for r in requests if isinstance(r, Joined)]
        self.joined = {r.output: self._pieces(count, trace.outputs[r.output], r.axis) for r in asked}
        # outputs of which only the last section's is asked for, and that no section hands on
        self.final = [r.output for r in requests if isinstance(r, Last) and r.output not in self.carried.values()]

    def forward(self, values: Sequence[tf.Tensor], target: Target) -> tuple[Any, ...]:
        """Return the requested results, then the stores that the backward loop reads."""
        count, outputs = self.count, self.part.joint.trace.outputs

        def body(s: tf.Tensor, states: Any, boundaries: Any, saved: Any, joined: Any, _: Any) -> tuple[Any, ...]:
            with tf.name_scope(forward_scope(self.name)):
                results = self.part.forward.write(self._section_inputs(values, s, states, target))
            with tf.name_scope("checkpoint"):
                boundaries = [b.put(store, s, state) for b, store, state in zip(self.boundaries, boundaries, states)]
                saved = [p.put(store, s, value) for p, store, value in zip(self.saved, saved, results[len(outputs) :])]
            joined = [p.put(store, s, results[o]) for (o, p), store in zip(self.joined.items(), joined)]
            states, final = [results[o] for o in self.carried.values()], [results[o] for o in self.final]
            return s + 1, states, boundaries, saved, joined, final

        states = [values[p] for p in self.carried]
        with tf.name_scope("checkpoint"):
            boundaries = [b.empty(target) for b in self.boundaries]
            saved = [p.empty(target) for p in self.saved]
        joined = [p.empty(target) for p in self.joined.values()]
        final = [self._no(o, target) for o in self.final]
        _, states, boundaries, saved, joined, final = tf.while_loop(
            lambda s, *_: s < count,
            written(body, target),
            (tf.constant(0), states, boundaries, saved, joined, final),
            maximum_iterations=count,
            parallel_iterations=1,
        )
        last = dict(zip((*self.carried.values(), *self.final), (*states, *final)))
        whole = {o: p.whole(store) for (o, p), store in zip(self.joined.items(), joined)}
        results = [whole[r.output] if isinstance(r, Joined) else last[r.output] for r in self.requests]
        return results, boundaries, states, saved, dict(zip(self.joined, joined))

    def backward(
        self, values: Sequence[tf.Tensor], stores: Sequence[Any], result_gradients: Sequence[tf.Tensor], target: Target
    ) -> list[tf.Tensor | None]:
        """Return the gradient of every port: the sections replayed and back-propagated, last to first."""
        part, count = self.part, self.count
        joint = part.joint
        boundaries, ends, saved, joined = stores
        produced = [p for p, g in enumerate(joint.gradients) if g is not None]
        sliced = {p: role for p, role in enumerate(self.roles) if p in produced and isinstance(role, Sliced)}
        pieces = [self._pieces(count, joint.trace.differentiable[p], role.axis) for p, role in sliced.items()]
        shared = [p for p in produced if isinstance(self.roles[p], Shared)]
        outgoing = [o for o, dy in enumerate(joint.output_gradients) if dy is not None]

        def body(s: tf.Tensor, state_gradients: Any, piece_gradients: Any, sums: Any) -> tuple[Any, ...]:
            with tf.name_scope("checkpoint"):
                firsts = [values[p] for p in self.carried]
                states = [b.entering(store, s, first) for b, store, first in zip(self.boundaries, boundaries, firsts)]
                stored = [p.get(store, s) for p, store in zip(self.saved, saved)]
                kept = self._kept_outputs(s, boundaries, ends, joined)
            incoming = [self._incoming(o, s, state_gradients, result_gradients, target) for o in outgoing]
            with tf.name_scope(backward_scope(self.name)):
                inputs = self._section_inputs(values, s, states, target)
                found = dict(zip(produced, part.backpropagate([*inputs, *stored, *kept, *incoming])))
                state_gradients = [found.get(p, unused) for p, unused in zip(self.carried, no_gradients)]
                with tf.name_scope("gradients"):  # not replayed: they add up and store what back-propagation found
                    piece_gradients = [p.put(g, s, found[port]) for p, g, port in zip(pieces, piece_gradients, sliced)]
                    sums = [total + found[p] for total, p in zip(sums, shared)]
            return s - 1, state_gradients, piece_gradients, sums

        no_gradients = [zeros_like(values[p], target) for p in self.carried]
        start = (
            tf.constant(count - 1),
            [self._last_gradient(o, zero, result_gradients) for o, zero in zip(self.carried.values(), no_gradients)],
            [p.empty(target) for p in pieces],
            [zeros_like(values[p], target) for p in shared],
        )
        _, state_gradients, piece_gradients, sums = tf.while_loop(
            lambda s, *_: s >= 0, written(body, target), start, maximum_iterations=count, parallel_iterations=1
        )
        gradients: list[tf.Tensor | None] = [None] * len(values)
        for p, gradient in (*zip(self.carried, state_gradients), *zip(shared, sums)):
            gradients[p] = gradient if p in produced else None
        for (p, role), piece, store in zip(sliced.items(), pieces, piece_gradients):
            gradients[p] = embed(piece.whole(store), values[p], role.axis, role.start)
        stacks = [p for p, role in sliced.items() if role.axis == 0]
        for written_otherwise in target.at("stacked"):
            others = written_otherwise([values[p] for p in stacks], [gradients[p] for p in stacks], target)
            for p, gradient in zip(stacks, others):
                gradients[p] = gradient
        return gradients

    def recalled(
        self, values: Sequence[tf.Tensor], results: Sequence[tf.Tensor], stores: Sequence[Any], target: Target
    ) -> list[tf.Tensor]:
        """Return ``results`` section by section, not in a loop, so that they can be differentiated more than once."""
        boundaries, ends, saved, joined = stores
        last = {r.output: result for r, result in zip(self.requests, results) if isinstance(r, Last)}
        sections: list[list[tf.Tensor]] = []
        for s in range(self.count):
            states = [sections[-1][o] for o in self.carried.values()] if sections else [values[p] for p in self.carried]
            known = self._left(tf.constant(s), boundaries, ends)
            known.update((o, p.get(joined[o], s)) for o, p in self.joined.items())
            # Of what is neither handed on nor joined the last section's alone is read.
            numbers = range(len(self.part.joint.trace.outputs))
            outputs = [known[o] if o in known else last[o] if o in last else self._no(o, target) for o in numbers]
            stored = [p.get(store, s) for p, store in zip(self.saved, saved)]
            inputs = self._section_inputs(values, tf.constant(s), states, target)
            sections.append(recalled(self.part, inputs, [*outputs, *stored], name=f"{self.name}.{s}"))
        return [self._requested(request, sections) for request in self.requests]

    def _requested(self, request: Request, sections: Sequence[Sequence[tf.Tensor]]) -> tf.Tensor:
        made = [outputs[request.output] for outputs in sections]
        if isinstance(request, Last):
            return made[-1]
        return tf.stack(made) if request.axis is None else tf.concat(made, request.axis)

    def _section_inputs(
        self, values: Sequence[tf.Tensor], s: tf.Tensor, states: Sequence[tf.Tensor], target: Target
    ) -> list[tf.Tensor]:
        state_of = dict(zip(self.carried, states))
        inputs = []
        for p, (role, value) in enumerate(zip(self.roles, values)):
            if isinstance(role, Carried):
                inputs.append(state_of[p])
            elif isinstance(role, Sliced):
                inputs.append(taken(value, role.axis, plus(times(s, role.length), role.start), role.length, target))
            else:
                inputs.append(value)
        return inputs

    def _kept_outputs(
        self, s: tf.Tensor, boundaries: Sequence[Any], ends: Sequence[tf.Tensor], joined: Mapping[int, Any]
    ) -> list[tf.Tensor]:
        # Not asked for, they are not to be captured: what a loop is given has to be there.
        left = self._left(s, boundaries, ends) if self.part.at_hand else {}
        return [left[o] if o in left else self.joined[o].get(joined[o], s) for o in self.part.at_hand]

    def _left(self, s: tf.Tensor, boundaries: Sequence[Any], ends: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Return by their numbers the outputs that section s hands on, of the last section those at the end of the loop."""
        outputs = self.carried.values()
        return {o: b.leaving(store, s, end) for o, b, store, end in zip(outputs, self.boundaries, boundaries, ends)}

    def _incoming(
        self,
        output: int,
        s: tf.Tensor,
        state_gradients: Sequence[tf.Tensor],
        result_gradients: Sequence[tf.Tensor],
        target: Target,
    ) -> tf.Tensor:
        """Return the gradient of an output of section s: from the section after it and from its share of the results."""
        parts = [g for o, g in zip(self.carried.values(), state_gradients) if o == output]
        for request, gradient in zip(self.requests, result_gradients):
            if isinstance(request, Joined) and request.output == output:
                parts.append(self.joined[output].of(gradient, s))
            elif request.output == output and output in self.final:
                parts.append(tf.where(s == self.count - 1, gradient, tf.zeros([], gradient.dtype)))
        if not parts:  # nobody reads it
            return self._no(output, target)
        return tf.add_n(parts) if len(parts) > 1 else parts[0]

    def _last_gradient(self, output: int, zero: tf.Tensor, result_gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        wanted = [g for request, g in zip(self.requests, result_gradients) if request == Last(output)]
        return tf.add_n(wanted) if wanted else zero

    def _pieces(self, count: int, value: tf.Tensor, axis: int | None = None) -> Pieces:
        return Pieces(count, self._shape(value), value.dtype, axis)

    def _no(self, output: int, target: Target) -> tf.Tensor:
        """Return zeros in place of an output or of its gradient."""
        made = self.part.joint.trace.outputs[output]
        return zeros(self._shape(made), made.dtype, target)

    def _shape(self, value: tf.Tensor) -> tuple[Dimension, ...]:
        return tuple(self.batch if d is None else d for d in value.shape)
