"""The predicted peak of a model: its layers as a chain of steps, and the cheapest sections of it within a budget.

The layers of a model in running order are a chain of steps, cut wherever all that ran before leads to one layer. Each step has
the bytes that cross its border, the bytes that its backward pass needs and its cost, measured by ``measure``. What a Model
carries out is one replay of each section but the last, so the best such sections within the budget are taken, exactly:
``planning.twice``. ``planning.optimal`` would replay steps more often in less memory, which no Model does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import tensorflow as tf

from ..planning import BudgetTooSmallError, Chain, simulate
from ..planning.simulate import Outcome
from ..planning.twice import (
    replay_seconds,
    section_actions_that_keep_inputs,
    sections_run_twice,
    smallest_room_bytes,
)
from .graph import Call, Graph, Key, ancestors
from .measure import Measure, Measured, spec_bytes

_BACKWARD = 2.0  # a backward pass costs two forward passes: one product for each operand
_STEP = 0.9  # the budgets to try are this much apart

Sections = tuple[int, ...]  # their first steps


@dataclass(frozen=True)
class Prediction:
    """``chain`` is the model in sections; without checkpoints it stands in no section, and needs ``plain_peak_bytes``.

    ``places`` are the positions of the calls that end a step. ``cut_seconds`` has the calls of recurrent layers, by position,
    with the cost of their forward pass: cut along time, they run forward once more. Where that is all that is done, a model
    needs ``cut_peak_bytes``.
    """

    chain: Chain
    plain_peak_bytes: int
    places: tuple[int, ...]
    cut_seconds: Mapping[int, float]
    cut_peak_bytes: int

    def peak_bytes(self, sections: Sections) -> int:
        """Return the peak of a step with these sections."""
        if len(sections) == 1:
            return self.plain_peak_bytes
        return self.outcome(sections).peak_bytes

    def outcome(self, sections: Sections) -> Outcome:
        """Return what these sections cost, each kept whole; a section's input stays as long as it runs."""
        return simulate(self.chain, section_actions_that_keep_inputs(len(self.chain), sections))

    def extra_seconds(self, sections: Sections) -> float:
        """Return what a step with these sections costs more than one without checkpoints."""
        if len(sections) == 1:
            return 0.0
        last = self.places[sections[-1] - 1]
        # Those in front of it are replayed with their sections.
        cut = sum(seconds for position, seconds in self.cut_seconds.items() if position > last)
        return self.outcome(sections).seconds - self.chain.plain_seconds + cut

    def cheapest_sections(self, *, budget_bytes: int) -> Sections:
        """Return the sections that replay least; of those equally cheap, the ones with the smallest peak.

        Raises BudgetTooSmallError, which carries the smallest budget that would do.
        """
        if budget_bytes >= self.plain_peak_bytes:
            return (0,)
        chain = self.chain
        enough = chain.plain_peak_bytes - chain.fixed_bytes - 1  # less than the whole model as one section
        room = min(budget_bytes - chain.fixed_bytes, enough)
        fitting = partial(sections_run_twice, chain, keeps_inputs=True)
        smallest_room = partial(smallest_room_bytes, chain, keeps_inputs=True)
        sections = fitting(room_bytes=room) if room >= 0 else None
        if sections is None:
            least = max(0, smallest_room(seconds=float("inf"), room_bytes=enough))
            fits = fitting(room_bytes=least) is not None
            smallest = min(chain.fixed_bytes + least, self.plain_peak_bytes) if fits else self.plain_peak_bytes
            raise BudgetTooSmallError("any sections", budget_bytes=budget_bytes, smallest_budget_bytes=smallest)
        seconds = replay_seconds(chain, sections)
        leanest = fitting(room_bytes=smallest_room(seconds=seconds, room_bytes=room))
        assert leanest is not None  # the room was found by asking just this
        return leanest

    def sections_for_all_budgets(self) -> list[Sections]:
        """Return the cheapest sections for ever smaller budgets, each at most ``_STEP`` of the peak before it."""
        found: list[Sections] = []
        fixed_bytes, budget_bytes = self.chain.fixed_bytes, self.plain_peak_bytes
        while True:
            try:
                sections = self.cheapest_sections(budget_bytes=budget_bytes)
            except BudgetTooSmallError as error:
                if not found or budget_bytes >= error.smallest_budget_bytes:
                    return found
                sections = self.cheapest_sections(budget_bytes=error.smallest_budget_bytes)
                return found if sections == found[-1] else [*found, sections]
            if found and sections == found[-1]:
                return found
            found.append(sections)
            budget_bytes = fixed_bytes + int((min(self.peak_bytes(sections), budget_bytes) - fixed_bytes) * _STEP)


def predict(graph: Graph, specs: dict[Key, tf.TensorSpec], *, fixed_bytes: int, timed: bool) -> Prediction:
    """Measure the calls of ``graph``, whose values have the types and shapes of ``specs``.

    ``fixed_bytes`` are alive whatever the plan. So are results, and their gradients, until the step that makes them has run
    backward: those of the last step count as its activations.
    """
    places = _places(graph.calls)
    measure = Measure(specs, timed=timed)
    measured = [measure(call) for call in graph.calls]
    lasting = {*graph.inputs, *graph.outputs, *graph.initial_states}  # alive whatever the plan
    kept, own_bytes, plain_own_bytes = _kept(graph.calls, measured)
    last_reader = {key: n for n, call in enumerate(graph.calls) for key in call.inputs}
    made_by = {key: n for n, call in enumerate(graph.calls) for key in call.outputs}
    states, activations, plain_activations, workings, plain_workings, costs = [], [], [], [], [], []
    cut_activations, cut_workings = [], []
    for before, end in pairwise([-1, *places]):
        calls = range(before + 1, end + 1)
        crossing = [k for k, n in made_by.items() if n <= before < last_reader.get(k, -1) and k not in lasting]
        inside = [k for k, n in made_by.items() if before < n <= end and k in kept and k not in lasting]
        states.append(sum(spec_bytes(specs[key]) for key in crossing))
        inside_bytes = sum(spec_bytes(specs[key]) for key in inside)
        results_bytes = 2 * sum(spec_bytes(specs[key]) for key in graph.outputs if before < made_by.get(key, -1) <= end)
        if end == places[-1]:
            inside_bytes += results_bytes
        else:
            fixed_bytes += results_bytes
        activations.append(sum(own_bytes[n] for n in calls) + inside_bytes)
        plain_activations.append(sum(plain_own_bytes[n] for n in calls) + inside_bytes)
        in_hand = {n: sum(spec_bytes(specs[key]) for key in (*graph.calls[n].inputs, *graph.calls[n].outputs)) for n in calls}
        # Recurrent layers cut along time, the others as in the plain model.
        cut_own = (own_bytes[n] if measured[n].is_cut else plain_own_bytes[n] for n in calls)
        cut_activations.append(sum(cut_own) + inside_bytes)
        workings.append(max(in_hand[n] + measured[n].scratch.section_bytes for n in calls))
        plain_workings.append(max(in_hand[n] + measured[n].scratch.plain_bytes for n in calls))
        scratches = {n: measured[n].scratch for n in calls}
        cut_scratch = {n: s.section_bytes if measured[n].is_cut else s.plain_bytes for n, s in scratches.items()}
        cut_workings.append(max(in_hand[n] + cut_scratch[n] for n in calls))
        costs.append(sum(measured[n].cost for n in calls))
    chain = Chain(
        state_bytes=states,
        activation_bytes=activations,
        working_bytes=workings,
        forward_seconds=costs,
        backward_seconds=[_BACKWARD * cost for cost in costs],
        fixed_bytes=fixed_bytes,
    )
    plain = replace(chain, activation_bytes=plain_activations, working_bytes=plain_workings)
    cut = replace(chain, activation_bytes=cut_activations, working_bytes=cut_workings)
    cut_seconds = {n: needs.cost for n, needs in enumerate(measured) if needs.is_cut}
    return Prediction(chain, plain.plain_peak_bytes, tuple(places), cut_seconds, cut.plain_peak_bytes)


def _places(calls: Sequence[Call]) -> list[int]:
    """Return the positions of the calls that all calls before them lead to, and the last position of all."""
    found = [n for n, needed in enumerate(ancestors(calls)) if needed == (1 << (n + 1)) - 1]
    return [*(n for n in found if n < len(calls) - 1), len(calls) - 1]


def _kept(calls: Sequence[Call], measured: Sequence[Measured]) -> tuple[set[Key], list[int], list[int]]:
    """Return the values of the model that stay for the backward pass, and the bytes that each call keeps of its own.

    Those first in a section, then in a model without checkpoints.
    What a backward pass computes with again is followed, through the calls that make it, to the arrays it comes from.
    """
    arrays: set[Key] = set()  # operands of products
    again: set[Key] = set()  # values that are computed again
    kept: set[Key] = set()
    own_bytes, plain_own_bytes = [0] * len(calls), [0] * len(calls)
    for n, (call, needs) in reversed(list(enumerate(zip(calls, measured)))):
        own, own_in_section = dict(needs.kept), dict(needs.kept_in_section)
        arrays.update(call.inputs[i] for i in needs.multiplies)
        again.update(call.inputs[i] for i in needs.reads)
        for number, (key, sources) in enumerate(zip(call.outputs, needs.sources)):
            if key in arrays or number in needs.needs or (key in again and sources is None):
                kept.add(key)
            if key in again and sources is not None:
                own.update(sources[0])
                own_in_section.update(sources[0])
                again.update(call.inputs[i] for i in sources[1])
        plain_own_bytes[n] = sum(own.values()) - needs.scratch.plain_surplus_bytes
        own_bytes[n] = min(sum(own_in_section.values()) - needs.scratch.section_surplus_bytes, plain_own_bytes[n])
    return kept, own_bytes, plain_own_bytes
