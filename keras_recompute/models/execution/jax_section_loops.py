"""Equal sections on JAX as one ``jax.lax.scan``, so that a program does not grow with its depth.

Each section is traced once, as a pure function of what it is given and of its variables. Sections
whose jaxprs are equal do the same to weights of their own: these are stacked, and the body of the
loop takes its slice. So are the states of random generators, statistics, counters and losses, which
come back stacked. The body is recomputed as a section alone is. In a model without checkpoints it
keeps what its gradient reads.

Sections of a sequence that begin with a ``TimeSlice`` are equal if what follows is, and their
slices follow one another. The body takes its slice by the number of the section. Where the sequence
is made by layers, it takes it from a stack instead, whose gradient needs no sums.

Sections with masks are not in loops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from ...keras_backend import jax_remat
from ...keras_backend.jax_convolutions import has_convolutions
from ...keras_backend.jax_programs import do_the_same, narrower_types_read
from ...layers.stateless_functions import PureCall
from ...layers.time_slice import TimeSlice
from ...op_names import backward_scope, forward_scope
from ...seams.keras.layers import mask_of
from ..keras_graph.call_graph import Graph, Key, keys_read
from ..keras_graph.sections import Section

Values = dict[Key, Any]
MakeCall = Callable[[Section, str, "Section | None"], PureCall]


@dataclass(frozen=True)
class _Window:
    """The timesteps of a ``sequence`` that ``layer`` takes: ``length`` from ``start`` on."""

    sequence: Key
    layer: TimeSlice

    @property
    def start(self) -> int:
        return self.layer.start

    @property
    def length(self) -> int:
        return self.layer.stop - self.layer.start

    def type_in(self, sequence: Any) -> Any:
        """Return the type of the slice. Raises what the layer does for a short sequence."""
        return jax.eval_shape(self.layer, sequence)

    def of_section(self, sequence: jax.Array, number: jax.Array) -> jax.Array:
        """Return the slice of the section that comes ``number`` sections later."""
        begin = self.start + number * self.length
        return jax.lax.dynamic_slice_in_dim(sequence, begin, self.length, axis=1)

    def stacked(self, sequence: jax.Array, count: int) -> jax.Array:
        """Return the slices of ``count`` sections, ``(count, batch, length, ...)``."""
        part = sequence[:, self.start : self.start + count * self.length]
        batch, _, *features = part.shape
        return part.reshape(batch, count, self.length, *features).swapaxes(0, 1)


# How an input reaches the sections of a loop: as that output of the section before, as its part of
# a sequence, or as one value for all.
Role = int | _Window | None


@dataclass(frozen=True, eq=False)
class _Traced:
    """A section that was traced, and not run yet.

    Attributes:
        whole: The section as it stands in the model.
        section: The section without the slices of sequences that it begins with.
        windows: These slices, by the keys of their results.
        call: The call of ``section``.
        closed: Its jaxpr.
    """

    whole: Section
    section: Section
    windows: dict[Key, _Window]
    call: PureCall
    closed: Any

    @property
    def output_types(self) -> dict[Key, Any]:
        """The types of its outputs."""
        return dict(zip(self.section.outputs, self.closed.out_avals))

    def function(self, *values: Any) -> list[Any]:
        """Return its results for arguments and captured arrays."""
        count = len(self.section.inputs)
        closed = self.closed.replace(consts=list(values[count:]))
        return list(jaxpr_as_fun(closed)(*values[:count]))


class LoopRunner:
    """Runs the sections of a graph, equal ones in loops.

    Attributes:
        loops: How many loops there were.
    """

    def __init__(self, graph: Graph, values: Values, call_of: MakeCall) -> None:
        self.loops = 0
        self._graph, self._values, self._call_of = graph, values, call_of
        self._waiting: list[_Traced] = []
        self._first = 0
        self._before: Section | None = None

    def run(self, sections: Sequence[Section]) -> None:
        """Run ``sections``, and add what they make to the values.

        Loops are made of recomputed sections, or of all where none is recomputed.
        """
        are_kept = not any(section.recomputed for section in sections)
        number = 0
        for section in sections:
            if not (section.recomputed or are_kept):
                self._run_waiting(number)
                self._run_kept(section)
                continue
            self._add(section, number)
            number += 1
        self._run_waiting(number)

    def _add(self, section: Section, number: int) -> None:
        traced = self._traced(section, number)
        if traced is None or not self._continues(traced):
            is_stale = traced is None or self._reads_what_is_assigned(traced)
            self._run_waiting(number)
            # It was traced before what it reads was there.
            traced = self._traced(section, number) if is_stale else traced
        if traced is not None:
            self._waiting.append(traced)
            return
        self._run_alone(section, number)
        self._first = number + 1

    def _traced(self, section: Section, number: int) -> _Traced | None:
        """Return the section as a jaxpr; None if there are masks."""
        known: dict[Key, Any] = {}
        for each in self._waiting:
            known.update(each.output_types)
        for key in section.inputs:
            if key not in known:
                value = self._values[key]
                if mask_of(value) is not None:
                    return None
                known[key] = jax.ShapeDtypeStruct(value.shape, value.dtype)
        rest, windows = _without_slices(section)
        for key, window in windows.items():
            known[key] = window.type_in(known[window.sequence])
        call = self._call_of(rest, f"section-{number}", None)
        function, given = call.pure([known[key] for key in rest.inputs])
        closed = jax.make_jaxpr(function)(*given)
        return None if call.has_masks else _Traced(section, rest, windows, call, closed)

    def _reads_what_is_assigned(self, traced: _Traced) -> bool:
        assigned = {id(variable) for each in self._waiting for variable in each.call.assigned}
        return not assigned.isdisjoint(traced.call.read)

    def _continues(self, traced: _Traced) -> bool:
        """Return whether a section is equal to the waiting ones, and goes on where they end."""
        if not self._waiting:
            return True
        head = self._waiting[0]
        if self._reads_what_is_assigned(traced) or self._roles([*self._waiting, traced]) is None:
            return False
        if head.call.result_counts != traced.call.result_counts:
            return False
        return do_the_same(head.closed, traced.closed)

    def _roles(self, group: Sequence[_Traced]) -> list[Role] | None:
        """Return the role of each input; None in place of the list if they are wired unlike."""
        if any(len(each.section.inputs) != len(group[0].section.inputs) for each in group):
            return None
        roles: list[Role] = []
        for slot in range(len(group[0].section.inputs)):
            windows = []
            for each in group:
                windows.append(each.windows.get(each.section.inputs[slot]))
            keys = [each.section.inputs[slot] for each in group]
            if all(each == keys[0] for each in keys):
                roles.append(None)
            elif any(windows):
                if not _follow_one_another(windows):
                    return None
                roles.append(windows[0])
            else:
                place = _place_of_carried(group, slot)
                if place is None:
                    return None
                roles.append(place)
        return roles

    def _run_waiting(self, number: int) -> None:
        """Run the sections that wait, up to section ``number``."""
        group, self._waiting = self._waiting, []
        first, self._first = self._first, number
        if not group:
            return
        if len(group) == 1:
            self._run_alone(group[0].whole, first)
            return
        results = self._run_loop(group, f"sections-{first}-{number - 1}")
        self.loops += 1
        for traced, made in zip(group, results):
            outputs = traced.call.finish(made)
            assert outputs is not None  # the layers of a graph have their variables
            self._values.update(zip(traced.section.outputs, outputs))
        self._before = group[-1].whole

    def _run_kept(self, section: Section) -> None:
        for call in section.calls:
            call.run(self._values)

    def _run_alone(self, section: Section, number: int) -> None:
        if not section.recomputed:
            self._run_kept(section)
            return
        inputs = [self._values[key] for key in section.inputs]
        outputs = self._call_of(section, f"section-{number}", self._before)(inputs)
        assert outputs is not None  # the layers of a graph have their variables
        self._values.update(zip(section.outputs, outputs))
        self._before = section

    def _run_loop(self, group: Sequence[_Traced], name: str) -> list[list[Any]]:
        """Return the results of each section; None in place of one that nothing reads."""
        head, roles = group[0], self._roles(group)
        assert roles is not None
        given, windows, stacks = self._inputs_of_loop(group, roles)
        carried = {slot: role for slot, role in enumerate(roles) if isinstance(role, int)}
        captured = list(zip(*(each.closed.consts for each in group)))
        own = [place for place, arrays in enumerate(captured) if len(set(map(id, arrays))) > 1]
        narrow = narrower_types_read(head.closed)
        kept = self._results_read(group)

        def section(number: jax.Array, *values: jax.Array) -> list[Any]:
            """Return the results of section ``number``: a slice is taken here, and not kept."""
            inputs = list(values)
            for slot, window in windows.items():
                part = window.of_section(inputs[slot], number)
                inputs[slot] = part.astype(head.closed.in_avals[slot].dtype)
            return head.function(*inputs)

        run, scope = section, contextlib.nullcontext()
        if head.whole.recomputed:
            run = jax_remat.recomputed(section, name=backward_scope(name))
            scope = jax_remat.named_scope(forward_scope(name))
        elif has_convolutions(head.closed.jaxpr):
            run = jax_remat.kept_in_loop(section)

        def body(carry: list[Any], slices: Any) -> tuple[list[Any], list[Any]]:
            number, of_sequences, of_weights = slices
            inputs, arrays = list(given), [arrays[0] for arrays in captured]
            for slot, value in (*zip(carried, carry), *of_sequences.items()):
                inputs[slot] = value
            for place, value in zip(own, of_weights):
                arrays[place] = value
            results = run(number, *inputs, *arrays)
            following = [results[place] for place in carried.values()]
            return following, [results[place] for place in kept]

        with scope:
            weights = []
            for place in own:
                # The stack is a copy and has a gradient of its size, so in the narrower type.
                cast = [array.astype(narrow.get(place, array.dtype)) for array in captured[place]]
                weights.append(jnp.stack(cast))
            slices = jnp.arange(len(group)), stacks, weights
            last, stacked = jax.lax.scan(body, [given[slot] for slot in carried], slices)
        results: list[list[Any]] = [[None] * len(head.closed.out_avals) for _ in group]
        for place, stack in zip(kept, stacked):
            for each, value in zip(results, stack):
                each[place] = value
        # Of what is carried only the last is known here; the others were read in the loop.
        for place, value in zip(carried.values(), last):
            results[-1][place] = value
        return results

    def _inputs_of_loop(
        self, group: Sequence[_Traced], roles: Sequence[Role]
    ) -> tuple[list[Any], dict[int, _Window], dict[int, jax.Array]]:
        """Return the inputs of the first section, with sequences in place of their slices.

        By the numbers of the inputs also the slices of the model's inputs, and stacks of the slices
        of what layers made.
        """
        given, windows, stacks = [], {}, {}
        for slot, (key, role) in enumerate(zip(group[0].section.inputs, roles)):
            if not isinstance(role, _Window):
                given.append(self._values[key])
                continue
            sequence = self._values[role.sequence]
            given.append(sequence)
            if role.sequence in self._graph.inputs:
                windows[slot] = role
            else:
                dtype = group[0].closed.in_avals[slot].dtype
                stacks[slot] = role.stacked(sequence, len(group)).astype(dtype)
        return given, windows, stacks

    def _results_read(self, group: Sequence[_Traced]) -> list[int]:
        """Return the numbers of the results that are read elsewhere than in the next section."""
        inside = {id(call) for each in group for call in each.section.calls}
        after = [call for call in self._graph.calls if id(call) not in inside]
        wanted = {*keys_read(after), *self._graph.outputs}
        for number, each in enumerate(group):
            # What goes on to the next section alone is carried.
            earlier = [key for other in group[:number] for key in other.section.outputs]
            before = group[number - 1].section.outputs if number else ()
            wanted |= set(each.section.inputs).intersection(earlier).difference(before)
        carried = {role for role in self._roles(group) or () if isinstance(role, int)}
        outputs = len(group[0].section.outputs)
        found = []
        for place in range(len(group[0].closed.out_avals)):
            if place >= outputs:
                found.append(place)
                continue
            # The last carried one comes out of the loop anyway.
            sections = group[:-1] if place in carried else group
            if wanted.intersection(each.section.outputs[place] for each in sections):
                found.append(place)
        return found


def _without_slices(section: Section) -> tuple[Section, dict[Key, _Window]]:
    """Return the section without the slices of its inputs, and these by the keys of results."""
    windows, calls = {}, []
    for call in section.calls:
        if isinstance(call.operation, TimeSlice) and call.inputs[0] in section.inputs:
            windows[call.outputs[0]] = _Window(call.inputs[0], call.operation)
        else:
            calls.append(call)
    # A slice that is read outside too is made once for each section.
    if windows.keys() & set(section.outputs):
        return section, {}
    read = keys_read(calls)
    inputs = tuple(key for key in (*section.inputs, *windows) if key in read)
    return replace(section, calls=tuple(calls), inputs=inputs), windows


def _follow_one_another(windows: Sequence[_Window | None]) -> bool:
    """Whether all are windows of one sequence, of one length, each behind the one before."""
    head = windows[0]
    if head is None:
        return False
    for number, each in enumerate(windows):
        if each is None or (each.sequence, each.length) != (head.sequence, head.length):
            return False
        if each.start != head.start + number * head.length:
            return False
    return True


def _place_of_carried(group: Sequence[_Traced], slot: int) -> int | None:
    """Return the number of the output that the section before hands on as input ``slot``.

    None if that is not one number, or the types differ.
    """
    keys = [each.section.inputs[slot] for each in group[1:]]
    outputs = [each.section.outputs for each in group[:-1]]
    if not all(each in made for each, made in zip(keys, outputs)):
        return None
    # A loop hands each value on at one place.
    places = {made.index(each) for each, made in zip(keys, outputs)}
    if len(places) > 1:
        return None
    (place,) = places
    given, made = group[0].closed.in_avals[slot], group[0].closed.out_avals[place]
    is_same = given.shape == made.shape and given.dtype == made.dtype
    return place if is_same else None
