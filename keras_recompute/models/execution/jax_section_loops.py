"""Equal sections on JAX as one ``jax.lax.scan``, so that a program does not grow with its depth.

Each section is traced once, as a pure function of what it is given and of its variables. Sections
whose jaxprs are equal do the same to weights of their own: these are stacked, and the body of the
loop takes its slice. So are the states of random generators, statistics, counters and losses, which
come back stacked. The body is recomputed as a section alone is.

Sections with masks are not in loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from ...keras_backend import jax_remat
from ...keras_backend.jax_programs import do_the_same
from ...layers.stateless_functions import PureCall
from ...op_names import backward_scope, forward_scope
from ...seams.keras.layers import mask_of
from ..keras_graph.call_graph import Graph, Key, keys_read
from ..keras_graph.sections import Section

Values = dict[Key, Any]
MakeCall = Callable[[Section, str], PureCall]


@dataclass(frozen=True, eq=False)
class _Traced:
    """A section that was traced, and not run yet."""

    section: Section
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

    def run(self, sections: Sequence[Section]) -> None:
        """Run ``sections``, and add what they make to the values."""
        number = 0
        for section in sections:
            if not section.recomputed:
                self._run_waiting(number)
                for call in section.calls:
                    call.run(self._values)
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
        inputs = [self._values[key] for key in section.inputs]
        outputs = self._call_of(section, f"section-{number}")(inputs)
        assert outputs is not None  # the layers of a graph have their variables
        self._values.update(zip(section.outputs, outputs))
        self._first = number + 1

    def _traced(self, section: Section, number: int) -> _Traced | None:
        """Return the section as a jaxpr; None if there are masks."""
        known: dict[Key, Any] = {}
        for each in self._waiting:
            known.update(each.output_types)
        types = []
        for key in section.inputs:
            if key not in known and mask_of(self._values[key]) is not None:
                return None
            found = known[key] if key in known else self._values[key]
            types.append(jax.ShapeDtypeStruct(found.shape, found.dtype))
        call = self._call_of(section, f"section-{number}")
        function, given = call.pure(types)
        closed = jax.make_jaxpr(function)(*given)
        return None if call.has_masks else _Traced(section, call, closed)

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

    def _roles(self, group: Sequence[_Traced]) -> list[int | None] | None:
        """Return for each input the output of the section before; None if it is one for all.

        None in place of the list if the sections are not wired alike.
        """
        head = group[0].section
        if any(len(each.section.inputs) != len(head.inputs) for each in group):
            return None
        roles: list[int | None] = []
        for slot, key in enumerate(head.inputs):
            keys = [each.section.inputs[slot] for each in group]
            if all(each == key for each in keys):
                roles.append(None)
                continue
            outputs = [each.section.outputs for each in group[:-1]]
            if not all(each in made for each, made in zip(keys[1:], outputs)):
                return None
            # A loop hands each value on at one place.
            places = {made.index(each) for each, made in zip(keys[1:], outputs)}
            if len(places) > 1:
                return None
            (place,) = places
            given, made = group[0].closed.in_avals[slot], group[0].closed.out_avals[place]
            if given.shape != made.shape or given.dtype != made.dtype:
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
            results = [self._run_alone(group[0], f"section-{first}")]
        else:
            results = self._run_loop(group, f"sections-{first}-{number - 1}")
            self.loops += 1
        for traced, made in zip(group, results):
            outputs = traced.call.finish(made)
            assert outputs is not None  # the layers of a graph have their variables
            self._values.update(zip(traced.section.outputs, outputs))

    def _run_alone(self, traced: _Traced, name: str) -> list[Any]:
        inputs = [self._values[key] for key in traced.section.inputs]
        with jax_remat.named_scope(forward_scope(name)):
            run = jax_remat.recomputed(traced.function, name=backward_scope(name))
            return run(*inputs, *traced.closed.consts)

    def _run_loop(self, group: Sequence[_Traced], name: str) -> list[list[Any]]:
        """Return the results of each section; None in place of one that nothing reads."""
        head, roles = group[0], self._roles(group)
        assert roles is not None
        inputs = [self._values[key] for key in head.section.inputs]
        slots = [slot for slot, role in enumerate(roles) if role is not None]
        carried = [role for role in roles if role is not None]
        captured = list(zip(*(each.closed.consts for each in group)))
        own = [place for place, arrays in enumerate(captured) if len(set(map(id, arrays))) > 1]
        kept = self._results_read(group)

        def body(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            given, arrays = list(inputs), [arrays[0] for arrays in captured]
            for slot, value in zip(slots, carry):
                given[slot] = value
            for place, value in zip(own, slices):
                arrays[place] = value
            run = jax_remat.recomputed(head.function, name=backward_scope(name))
            results = run(*given, *arrays)
            following = [results[place] for place in carried]
            return following, [results[place] for place in kept]

        with jax_remat.named_scope(forward_scope(name)):
            stacks = [jnp.stack(captured[place]) for place in own]
            last, stacked = jax.lax.scan(
                body, [inputs[slot] for slot in slots], stacks, length=len(group)
            )
        results: list[list[Any]] = [[None] * len(head.closed.out_avals) for _ in group]
        for place, stack in zip(kept, stacked):
            for section, value in zip(results, stack):
                section[place] = value
        # Of what is carried only the last is known here; the others were read in the loop.
        for place, value in zip(carried, last):
            results[-1][place] = value
        return results

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
        carried = {role for role in self._roles(group) or () if role is not None}
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
