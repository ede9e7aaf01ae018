"""The forward loop over equal sections, and the backward loop that replays them last to first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ...graph_traversal import reachable
from ...op_names import backward_scope, forward_scope
from ..capture.custom_vjp import Gradients, Tensors
from ..capture.missing_gradients import with_zero_gradients
from ..emit.higher_order import part_for_outputs
from ..emit.lowering import outputs_with_gradient
from ..graph.annotations import replay_source
from ..graph.dataflow import makers, numbers_present, pick, producers
from ..graph.graph_constants import add, multiply
from ..graph.sparse_gradients import Gradient, densify
from ..graph.target import Target
from ..graph.target_ops import slice_in_loop, with_body_passes, zeros, zeros_like
from ..partition.partition import Partition
from ..passes import target_now
from .carry_store import CarryStore
from .scan_gradients import GradientStores
from .scan_roles import Carry, Constant, FinalOutput, Request, Role, Scanned, StackedOutput
from .scan_rows import rows_of_sections
from .slice_store import (
    Dimension,
    SliceStore,
    empty_all,
    get_all,
    put_all,
    tensor_handles,
    whole_all,
    with_tensor_handles,
)


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
        self.boundaries = []
        for state in pick(trace.outputs, self.carried.values()):
            self.boundaries.append(CarryStore(count, self._shape(state), state.dtype))
        self.saved = [self._slices(count, value) for value in part.saved]
        self.joined: dict[int, SliceStore] = {}
        for request in requests:
            if isinstance(request, StackedOutput):
                output = trace.outputs[request.output]
                self.joined[request.output] = self._slices(count, output, request.axis)
        # The outputs that only the last section is asked for, and that no section passes on.
        self.final = []
        for request in requests:
            if isinstance(request, FinalOutput) and request.output not in self.carried.values():
                self.final.append(request.output)
        self._keeps_states = keeps_states
        # Made by ``results``, which returns their tensors.
        self._stores: list[Any] = []

    def results(self, values: Tensors) -> list[tf.Tensor]:
        """Write the forward loop; return one tensor per request, then what the gradient needs."""
        results, *self._stores = self.forward(values, target_now())
        if self._keeps_states:
            # A replay of the function around the loop begins with the states.
            states = zip(self.boundaries, self._stores[0])
            self._stores[0] = [replay_source(b.whole(store)) for b, store in states]
        return [*results, *tensor_handles(self._stores)]

    def gradient(
        self, values: Tensors, made: Tensors, result_gradients: Sequence[tf.Tensor | None]
    ) -> Gradients:
        """Write the backward loop; ``made`` is what ``results`` returned."""
        stores = with_tensor_handles(self._stores, made[len(self.requests) :])
        found = self.backward(values, stores, result_gradients, target_now())
        return with_zero_gradients(found, values, self.part.joint.no_gradient_reasons)

    def recompute_primal(self, values: Tensors, made: Tensors) -> list[tf.Tensor]:
        """Return the results section by section, to be differentiated more than once."""
        n_results = len(self.requests)
        stores = with_tensor_handles(self._stores, made[n_results:])
        return self.outputs_with_gradient(values, made[:n_results], stores, target_now())

    def forward(self, values: Sequence[tf.Tensor], target: Target) -> tuple[Any, ...]:
        """Return the requested results, then the stores that the backward loop reads."""
        count, outputs = self.count, self.part.joint.trace.outputs

        def body(
            s: tf.Tensor, states: Any, boundaries: Any, saved: Any, joined: Any, _: Any
        ) -> tuple[Any, ...]:
            with tf.name_scope(forward_scope(self.name)):
                results = self.part.forward.write(self._section_inputs(values, s, states, target))
            with tf.name_scope("checkpoint"):
                boundaries = put_all(self.boundaries, boundaries, s, states)
                saved = put_all(self.saved, saved, s, results[len(outputs) :])
            stacked = pick(results, self.joined)
            joined = put_all(self.joined.values(), joined, s, stacked)
            states = pick(results, self.carried.values())
            final = pick(results, self.final)
            return s + 1, states, boundaries, saved, joined, final

        states = pick(values, self.carried)
        with tf.name_scope("checkpoint"):
            boundaries = empty_all(self.boundaries, target)
            saved = empty_all(self.saved, target)
        joined = empty_all(self.joined.values(), target)
        final = [self._no(o, target) for o in self.final]
        # Sections run one at a time, so that the activations of one are alive at a time.
        _, states, boundaries, saved, joined, final = tf.while_loop(
            lambda s, *_: s < count,
            with_body_passes(body, target),
            (tf.constant(0), states, boundaries, saved, joined, final),
            maximum_iterations=count,
            parallel_iterations=1,
        )
        last = dict(zip((*self.carried.values(), *self.final), (*states, *final)))
        whole = dict(zip(self.joined, whole_all(self.joined.values(), joined)))
        results = []
        for request in self.requests:
            made = whole if isinstance(request, StackedOutput) else last
            results.append(made[request.output])
        return results, boundaries, states, saved, dict(zip(self.joined, joined))

    def backward(
        self,
        values: Tensors,
        stores: Sequence[Any],
        result_gradients: Sequence[tf.Tensor | None],
        target: Target,
    ) -> list[Gradient | None]:
        """Return the gradient of every port.

        Sections are replayed and back-propagated last to first. ``result_gradients`` has None for a
        result that is not differentiated.
        """
        count = self.count
        requested = pick(self.requests, numbers_present(result_gradients))
        live = self._live_outputs(requested)
        part = part_for_outputs(self.part, live)
        joint = part.joint
        boundaries, ends, saved, joined = stores
        collected = GradientStores.of(
            part, self.roles, lambda value, axis: self._slices(count, value, axis)
        )
        outgoing = numbers_present(joint.output_gradients)

        def body(s: tf.Tensor, state_gradients: Any, gradients: Any) -> tuple[Any, ...]:
            with tf.name_scope("checkpoint"):
                firsts = pick(values, self.carried)
                states = self._carried_in(s, boundaries, firsts)
                stored = get_all(self.saved, saved, s)
                kept = self._kept_outputs(s, boundaries, ends, joined)
            incoming = []
            for o in outgoing:
                incoming.append(self._incoming(o, s, state_gradients, result_gradients, target))
            with tf.name_scope(backward_scope(self.name)):
                inputs = self._section_inputs(values, s, states, target)
                found = part.backpropagate([*inputs, *stored, *kept, *incoming])
                state_gradients = list(no_gradients)
                for number, p in enumerate(self.carried):
                    if found[p] is not None:
                        state_gradients[number] = densify(found[p])
                # Not replayed: these add up and store what back-propagation found.
                with tf.name_scope("gradients"):
                    gradients = collected.add(gradients, s, found)
            return s - 1, state_gradients, gradients

        no_gradients = [zeros_like(values[p], target) for p in self.carried]
        begin = tf.constant(count - 1)
        last_gradients = []
        for o, zero in zip(self.carried.values(), no_gradients):
            last_gradients.append(self._last_gradient(o, zero, result_gradients))
        _, state_gradients, stored_gradients = tf.while_loop(
            lambda s, *_: s >= 0,
            with_body_passes(body, target),
            (begin, last_gradients, collected.empty(values, target)),
            maximum_iterations=count,
            parallel_iterations=1,
        )

        def read_by_rows(s: tf.Tensor, read: Sequence[int]) -> dict[int, tf.Tensor]:
            return self._read_by_rows(s, read, values, stores, target)

        rows: list[tf.Tensor] = []
        if collected.sparse:
            with tf.name_scope(backward_scope(self.name)):
                rows = rows_of_sections(part, collected, count, read_by_rows, target)
        found = collected.gradients(stored_gradients, rows, values)
        found.update(zip(self.carried, state_gradients))
        gradients = [found.get(p) if p in joint.produced else None for p in range(len(values))]
        stacks = [p for p, role in collected.scanned.items() if role.axis == 0]
        for written_otherwise in target.at("stack_gradient"):
            others = written_otherwise(pick(values, stacks), pick(gradients, stacks), target)
            for p, gradient in zip(stacks, others):
                gradients[p] = gradient
        return gradients

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
        states = pick(values, self.carried)
        # A loop around this one would replay everything captured, so only what is read is.
        if not self.carried.keys().isdisjoint(read):
            states = self._carried_in(s, boundaries, states)
        known = dict(enumerate(self._section_inputs(values, s, states, target)))
        first_saved, first_kept = len(known), len(known) + len(saved)
        for number, (description, store) in enumerate(zip(self.saved, saved), first_saved):
            if number in read:
                known[number] = description.get(store, s)
        if any(number >= first_kept for number in read):
            known.update(enumerate(self._kept_outputs(s, boundaries, ends, joined), first_kept))
        return known

    def _carried_in(
        self, s: tf.Tensor, boundaries: Sequence[Any], firsts: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Return the states that enter section ``s``; ``firsts`` enter the first one."""
        states = []
        for boundary, store, first in zip(self.boundaries, boundaries, firsts):
            states.append(boundary.carry_in(store, s, first))
        return states

    def _live_outputs(self, requested: Sequence[Request]) -> set[int]:
        """Return the outputs of sections whose gradients the results ``requested`` lead to."""
        joint = self.part.joint
        live = {request.output for request in requested}
        if live.issuperset(numbers_present(joint.output_gradients)):
            return live
        # A section hands on a gradient to the one before it where its carried inputs have one.
        while True:
            needed = reachable(makers(pick(joint.trace.outputs, live)), producers)
            handed_on = set()
            for port, output in self.carried.items():
                if not needed.keys().isdisjoint(makers(joint.trace.ports[port])):
                    handed_on.add(output)
            if handed_on <= live:
                return live
            live |= handed_on

    def outputs_with_gradient(
        self,
        values: Sequence[tf.Tensor],
        results: Sequence[tf.Tensor],
        stores: Sequence[Any],
        target: Target,
    ) -> list[tf.Tensor]:
        """Return ``results`` section by section, without a loop.

        They can be differentiated more than once.
        """
        boundaries, ends, saved, joined = stores
        last: dict[int, tf.Tensor] = {}
        for request, result in zip(self.requests, results):
            if isinstance(request, FinalOutput):
                last[request.output] = result
        sections: list[list[tf.Tensor]] = []
        states = pick(values, self.carried)
        for s in range(self.count):
            # An output that is neither passed on nor stacked is read of the last section alone.
            known = {**last, **self._left(tf.constant(s), boundaries, ends)}
            known.update((o, p.get(joined[o], s)) for o, p in self.joined.items())
            outputs = []
            for o in range(len(self.part.joint.trace.outputs)):
                outputs.append(known[o] if o in known else self._no(o, target))
            results_of_forward = [*outputs, *get_all(self.saved, saved, s)]
            inputs = self._section_inputs(values, tf.constant(s), states, target)
            name = f"{self.name}.{s}"
            sections.append(outputs_with_gradient(self.part, inputs, results_of_forward, name=name))
            states = pick(sections[-1], self.carried.values())
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
                begin = add(multiply(s, role.length), role.start)
                inputs.append(slice_in_loop(value, role.axis, begin, role.length, target))
            else:
                inputs.append(value)
        return inputs

    def _kept_outputs(
        self,
        s: tf.Tensor,
        boundaries: Sequence[Any],
        ends: Sequence[tf.Tensor],
        joined: Mapping[int, Any],
    ) -> list[tf.Tensor]:
        # Unused stores must not be captured: a loop's inputs have to be there before it starts.
        left = self._left(s, boundaries, ends) if self.part.kept_by_caller else {}
        kept = []
        for o in self.part.kept_by_caller:
            kept.append(left[o] if o in left else self.joined[o].get(joined[o], s))
        return kept

    def _left(
        self, s: tf.Tensor, boundaries: Sequence[Any], ends: Sequence[tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """Return the outputs that section s passes on, by number; the last section's: ``ends``."""
        found = {}
        stores = zip(self.carried.values(), self.boundaries, boundaries, ends)
        for output, boundary, store, end in stores:
            found[output] = boundary.carry_out(store, s, end)
        return found

    def _incoming(
        self,
        output: int,
        s: tf.Tensor,
        state_gradients: Sequence[tf.Tensor],
        result_gradients: Sequence[tf.Tensor | None],
        target: Target,
    ) -> tf.Tensor:
        """Return the gradient of an output of section s.

        It comes from the section after it and from the section's share of the results.
        """
        parts = [g for o, g in zip(self.carried.values(), state_gradients) if o == output]
        for request, gradient in zip(self.requests, result_gradients):
            if gradient is None:
                continue
            if isinstance(request, StackedOutput) and request.output == output:
                parts.append(self.joined[output].slice(gradient, s))
            elif request.output == output and output in self.final:
                parts.append(tf.where(s == self.count - 1, gradient, tf.zeros([], gradient.dtype)))
        # The output has no reader.
        if not parts:
            return self._no(output, target)
        return tf.add_n(parts) if len(parts) > 1 else parts[0]

    def _last_gradient(
        self, output: int, zero: tf.Tensor, result_gradients: Sequence[tf.Tensor | None]
    ) -> tf.Tensor:
        pairs = zip(self.requests, result_gradients)
        wanted = [g for request, g in pairs if request == FinalOutput(output) and g is not None]
        return tf.add_n(wanted) if wanted else zero

    def _slices(self, count: int, value: tf.Tensor, axis: int | None = None) -> SliceStore:
        return SliceStore(count, self._shape(value), value.dtype, axis)

    def _no(self, output: int, target: Target) -> tf.Tensor:
        """Return zeros in place of an output or of its gradient."""
        made = self.part.joint.trace.outputs[output]
        return zeros(self._shape(made), made.dtype, target)

    def _shape(self, value: tf.Tensor) -> tuple[Dimension, ...]:
        return tuple(self.batch if d is None else d for d in value.shape)
