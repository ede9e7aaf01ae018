"""The two loops over equal sections: one that runs them, and one that replays and differentiates them, last to first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..graph_traversal import reachable
from ..op_names import backward_scope, forward_scope
from .annotations import replay_source
from .carry_store import CarryStore
from .custom_vjp import Gradients, Tensors
from .graph_constants import add, multiply
from .higher_order import part_for_outputs
from .lowering import outputs_with_gradient
from .missing_gradients import with_zero_gradients
from .partition import Partition
from .passes import target_now
from .scan_roles import Carry, Constant, FinalOutput, Request, Role, Scanned, StackedOutput
from .slice_store import Dimension, SliceStore, pad_into, tensor_handles, with_tensor_handles
from .sparse_gradients import Gradient, densify, values_of
from .sparse_gradients import slices as indexed_slices
from .target import Target
from .target_ops import slice_in_loop, with_body_passes, zeros, zeros_like


def sparse_ports(part: Partition, roles: Sequence[Role]) -> list[int]:
    """Return the ports whose gradient by the whole loop is sparse: those that all sections share."""
    return [p for p in part.joint.rows if p >= len(roles) or isinstance(roles[p], Constant)]


def slice_values(part: Partition, port: int) -> tf.Tensor:
    """Return the values of the sparse gradient of ``port``, in the graph of the section."""
    return part.joint.gradient_tensors[part.joint.produced.index(port)]


class ScanLoops:
    """The forward and the backward loop over ``count`` equal sections; see ``section_scan``."""

    def __init__(
        self,
        part: Partition,
        count: int,
        roles: tuple[Role, ...],
        requests: tuple[Request, ...],
        batch: Dimension,
        name: str,
        *,
        keeps_states: bool = False,
    ) -> None:
        trace = part.joint.trace
        self.batch = batch
        self.part, self.count, self.requests, self.name = part, count, requests, name
        self.roles = roles + (Constant(),) * (len(trace.ports) - len(roles))
        # port number -> number of the output that feeds it in the next section
        self.carried = {p: r.output for p, r in enumerate(self.roles) if isinstance(r, Carry)}
        self.boundaries = [
            CarryStore(count, self._shape(trace.outputs[o]), trace.outputs[o].dtype) for o in self.carried.values()
        ]
        self.saved = [self._pieces(count, value) for value in part.saved]
        asked = [r for r in requests if isinstance(r, StackedOutput)]
        self.joined = {r.output: self._pieces(count, trace.outputs[r.output], r.axis) for r in asked}
        # outputs of which only the last section's is asked for, and that no section hands on
        self.final = [r.output for r in requests if isinstance(r, FinalOutput) and r.output not in self.carried.values()]
        self._keeps_states = keeps_states
        self._stores: list[Any] = []  # as ``results`` has made them, of which it returns the tensors

    def results(self, values: Tensors) -> list[tf.Tensor]:
        """Write the forward loop; return one tensor per request, then what the gradient needs."""
        results, *self._stores = self.forward(values, target_now())
        if self._keeps_states:
            states = zip(self.boundaries, self._stores[0])
            self._stores[0] = [replay_source(b.whole(store)) for b, store in states]
        return [*results, *tensor_handles(self._stores)]

    def gradient(self, values: Tensors, made: Tensors, result_gradients: Sequence[tf.Tensor | None]) -> Gradients:
        """Write the backward loop; ``made`` is what ``results`` returned."""
        stores = with_tensor_handles(self._stores, made[len(self.requests) :])
        found = self.backward(values, stores, result_gradients, target_now())
        return with_zero_gradients(found, values, self.part.joint.no_gradient_reasons)

    def again(self, values: Tensors, made: Tensors) -> list[tf.Tensor]:
        """Return the results section by section, to be differentiated more than once."""
        n_results = len(self.requests)
        stores = with_tensor_handles(self._stores, made[n_results:])
        return self.outputs_with_gradient(values, made[:n_results], stores, target_now())

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
            with_body_passes(body, target),
            (tf.constant(0), states, boundaries, saved, joined, final),
            maximum_iterations=count,
            parallel_iterations=1,
        )
        last = dict(zip((*self.carried.values(), *self.final), (*states, *final)))
        whole = {o: p.whole(store) for (o, p), store in zip(self.joined.items(), joined)}
        results = [whole[r.output] if isinstance(r, StackedOutput) else last[r.output] for r in self.requests]
        return results, boundaries, states, saved, dict(zip(self.joined, joined))

    def backward(
        self,
        values: Tensors,
        stores: Sequence[Any],
        result_gradients: Sequence[tf.Tensor | None],
        target: Target,
    ) -> list[Gradient | None]:
        """Return the gradient of every port: the sections replayed and back-propagated, last to first.

        ``result_gradients`` has None for a result that nobody differentiates.
        """
        count, given = self.count, dict(enumerate(result_gradients))
        live = self._live_outputs([r for n, r in enumerate(self.requests) if given[n] is not None])
        part = part_for_outputs(self.part, live)
        joint = part.joint
        boundaries, ends, saved, joined = stores
        sliced = {
            p: role for p, role in enumerate(self.roles)
            if p in joint.produced and isinstance(role, Scanned)
        }  # fmt: skip
        pieces = [self._pieces(count, joint.trace.differentiable[p], role.axis) for p, role in sliced.items()]
        sparse = sparse_ports(part, self.roles)
        slice_pieces = [self._pieces(count, slice_values(part, p), axis=0) for p in sparse]
        shared = [p for p in joint.produced if isinstance(self.roles[p], Constant) and p not in sparse]
        outgoing = [o for o, dy in enumerate(joint.output_gradients) if dy is not None]

        def body(s: tf.Tensor, state_gradients: Any, piece_gradients: Any, slices: Any, sums: Any) -> tuple[Any, ...]:
            with tf.name_scope("checkpoint"):
                firsts = [values[p] for p in self.carried]
                states = [b.carry_in(store, s, first) for b, store, first in zip(self.boundaries, boundaries, firsts)]
                stored = [p.get(store, s) for p, store in zip(self.saved, saved)]
                kept = self._kept_outputs(s, boundaries, ends, joined)
            incoming = [self._incoming(o, s, state_gradients, result_gradients, target) for o in outgoing]
            with tf.name_scope(backward_scope(self.name)):
                inputs = self._section_inputs(values, s, states, target)
                found = part.backpropagate([*inputs, *stored, *kept, *incoming])
                state_gradients = [
                    unused if found[p] is None else densify(found[p]) for p, unused in zip(self.carried, no_gradients)
                ]
                with tf.name_scope("gradients"):  # not replayed: they add up and store what back-propagation found
                    piece_gradients = [p.put(g, s, densify(found[n])) for p, g, n in zip(pieces, piece_gradients, sliced)]
                    found_slices = [values_of(found[p]) for p in sparse]
                    slices = [p.put(store, s, t) for p, store, t in zip(slice_pieces, slices, found_slices)]
                    sums = [total + found[p] for total, p in zip(sums, shared)]
            return s - 1, state_gradients, piece_gradients, slices, sums

        no_gradients = [zeros_like(values[p], target) for p in self.carried]
        start = (
            tf.constant(count - 1),
            [self._last_gradient(o, zero, result_gradients) for o, zero in zip(self.carried.values(), no_gradients)],
            [p.empty(target) for p in pieces],
            [p.empty(target) for p in slice_pieces],
            [zeros_like(values[p], target) for p in shared],
        )
        _, state_gradients, piece_gradients, slices, sums = tf.while_loop(
            lambda s, *_: s >= 0, with_body_passes(body, target), start, maximum_iterations=count, parallel_iterations=1
        )
        gradients: list[Gradient | None] = [None] * len(values)
        for p, gradient in (*zip(self.carried, state_gradients), *zip(shared, sums)):
            gradients[p] = gradient if p in joint.produced else None
        for (p, role), piece, store in zip(sliced.items(), pieces, piece_gradients):
            gradients[p] = pad_into(piece.whole(store), values[p], role.axis, role.start)
        rows = self._rows(part, sparse, values, stores, target)
        for p, piece, store, rows_of_port in zip(sparse, slice_pieces, slices, rows):
            gradients[p] = indexed_slices(piece.whole(store), rows_of_port, values[p])
        stacks = [p for p, role in sliced.items() if role.axis == 0]
        for written_otherwise in target.at("stack_gradient"):
            others = written_otherwise([values[p] for p in stacks], [gradients[p] for p in stacks], target)
            for p, gradient in zip(stacks, others):
                gradients[p] = gradient
        return gradients

    def _rows(
        self,
        part: Partition,
        ports: Sequence[int],
        values: Tensors,
        stores: Sequence[Any],
        target: Target,
    ) -> list[tf.Tensor]:
        """Write a loop over the rows of sparse gradients; return those of all sections, by port.

        They wait for no gradient. So where this loop stands inside a section of another one, that
        one can compute them too, in front of its fence.
        """
        if part.rows is None or not ports:
            return []
        program, read = part.rows.with_read_ports()
        numbers = list(part.joint.rows)
        row_stores = [self._pieces(self.count, part.joint.rows[p], axis=0) for p in ports]

        def body(s: tf.Tensor, stacks: Any) -> tuple[Any, ...]:
            known = self._read_by_rows(s, read, values, stores, target)
            rows = dict(zip(numbers, program.write([known[n] for n in read])))
            by_port = zip(ports, row_stores, stacks)
            return s + 1, [store.put(stack, s, rows[p]) for p, store, stack in by_port]

        with tf.name_scope(backward_scope(self.name)):
            _, stacks = tf.while_loop(
                lambda s, *_: s < self.count,
                with_body_passes(body, target),
                (tf.constant(0), [store.empty(target) for store in row_stores]),
                maximum_iterations=self.count,
                parallel_iterations=1,
            )
        return [store.whole(stack) for store, stack in zip(row_stores, stacks)]

    def _read_by_rows(
        self,
        s: tf.Tensor,
        read: Sequence[int],
        values: Tensors,
        stores: Sequence[Any],
        target: Target,
    ) -> dict[int, tf.Tensor]:
        """Return what the rows of section ``s`` follow from, by the numbers ``read`` and others."""
        boundaries, ends, saved, joined = stores
        states = [values[p] for p in self.carried]
        # A loop around this one would replay whatever is captured, so what is not read is not.
        if any(p in read for p in self.carried):
            stored = zip(self.boundaries, boundaries, states)
            states = [b.carry_in(store, s, first) for b, store, first in stored]
        known = dict(enumerate(self._section_inputs(values, s, states, target)))
        first_saved, first_kept = len(known), len(known) + len(saved)
        for n, (piece, store) in enumerate(zip(self.saved, saved), first_saved):
            if n in read:
                known[n] = piece.get(store, s)
        if any(n >= first_kept for n in read):
            known.update(enumerate(self._kept_outputs(s, boundaries, ends, joined), first_kept))
        return known

    def _live_outputs(self, asked: Sequence[Request]) -> set[int]:
        """Return the outputs of sections that have a gradient where the results ``asked`` have one."""
        joint = self.part.joint
        live = {request.output for request in asked}
        if live.issuperset(o for o, dy in enumerate(joint.output_gradients) if dy is not None):
            return live
        # A section hands on a gradient to the one before it where its carried inputs have one.
        while True:
            outputs = [joint.trace.outputs[o].op for o in live]
            needed = reachable(outputs, lambda op: (t.op for t in op.inputs))
            handed_on = {
                output for port, output in self.carried.items()
                if any(t.op in needed for t in joint.trace.ports[port])
            }  # fmt: skip
            if handed_on <= live:
                return live
            live |= handed_on

    def outputs_with_gradient(
        self, values: Sequence[tf.Tensor], results: Sequence[tf.Tensor], stores: Sequence[Any], target: Target
    ) -> list[tf.Tensor]:
        """Return ``results`` section by section, not in a loop, so that they can be differentiated more than once."""
        boundaries, ends, saved, joined = stores
        last = {r.output: result for r, result in zip(self.requests, results) if isinstance(r, FinalOutput)}
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
            sections.append(outputs_with_gradient(self.part, inputs, [*outputs, *stored], name=f"{self.name}.{s}"))
        return [self._requested(request, sections) for request in self.requests]

    def _requested(self, request: Request, sections: Sequence[Sequence[tf.Tensor]]) -> tf.Tensor:
        made = [outputs[request.output] for outputs in sections]
        if isinstance(request, FinalOutput):
            return made[-1]
        return tf.stack(made) if request.axis is None else tf.concat(made, request.axis)

    def _section_inputs(
        self, values: Sequence[tf.Tensor], s: tf.Tensor, states: Sequence[tf.Tensor], target: Target
    ) -> list[tf.Tensor]:
        state_of = dict(zip(self.carried, states))
        inputs = []
        for p, (role, value) in enumerate(zip(self.roles, values)):
            if isinstance(role, Carry):
                inputs.append(state_of[p])
            elif isinstance(role, Scanned):
                inputs.append(slice_in_loop(value, role.axis, add(multiply(s, role.length), role.start), role.length, target))
            else:
                inputs.append(value)
        return inputs

    def _kept_outputs(
        self, s: tf.Tensor, boundaries: Sequence[Any], ends: Sequence[tf.Tensor], joined: Mapping[int, Any]
    ) -> list[tf.Tensor]:
        # Not asked for, they are not to be captured: what a loop is given has to be there.
        left = self._left(s, boundaries, ends) if self.part.kept_by_caller else {}
        return [left[o] if o in left else self.joined[o].get(joined[o], s) for o in self.part.kept_by_caller]

    def _left(self, s: tf.Tensor, boundaries: Sequence[Any], ends: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Return by their numbers the outputs that section s hands on, of the last section those at the end of the loop."""
        outputs = self.carried.values()
        return {o: b.carry_out(store, s, end) for o, b, store, end in zip(outputs, self.boundaries, boundaries, ends)}

    def _incoming(
        self,
        output: int,
        s: tf.Tensor,
        state_gradients: Sequence[tf.Tensor],
        result_gradients: Sequence[tf.Tensor | None],
        target: Target,
    ) -> tf.Tensor:
        """Return the gradient of an output of section s: from the section after it and from its share of the results."""
        parts = [g for o, g in zip(self.carried.values(), state_gradients) if o == output]
        for request, gradient in zip(self.requests, result_gradients):
            if gradient is None:
                continue
            if isinstance(request, StackedOutput) and request.output == output:
                parts.append(self.joined[output].slice(gradient, s))
            elif request.output == output and output in self.final:
                parts.append(tf.where(s == self.count - 1, gradient, tf.zeros([], gradient.dtype)))
        if not parts:  # nobody reads it
            return self._no(output, target)
        return tf.add_n(parts) if len(parts) > 1 else parts[0]

    def _last_gradient(self, output: int, zero: tf.Tensor, result_gradients: Sequence[tf.Tensor | None]) -> tf.Tensor:
        asked = zip(self.requests, result_gradients)
        wanted = [g for request, g in asked if request == FinalOutput(output) and g is not None]
        return tf.add_n(wanted) if wanted else zero

    def _pieces(self, count: int, value: tf.Tensor, axis: int | None = None) -> SliceStore:
        return SliceStore(count, self._shape(value), value.dtype, axis)

    def _no(self, output: int, target: Target) -> tf.Tensor:
        """Return zeros in place of an output or of its gradient."""
        made = self.part.joint.trace.outputs[output]
        return zeros(self._shape(made), made.dtype, target)

    def _shape(self, value: tf.Tensor) -> tuple[Dimension, ...]:
        return tuple(self.batch if d is None else d for d in value.shape)
