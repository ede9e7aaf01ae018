"""The predicted peak of a model as a chain of steps, and its cheapest sections within a budget.

The layers of a model in running order are a chain of steps, cut wherever all earlier calls lead to
one layer, or have run to the end of a branch. Each step has the bytes that cross its border, the
bytes that its backward pass needs and its cost, all measured by ``layer_cost``. A Model replays
each section but the last once. So the best such sections within the budget are taken, exactly:
``planning.single_replay``. To replay steps more often would need less memory, but no Model does.

A weight is updated as soon as its gradient is there (``engine.update_order``). So the gradients of
one section are alive at a time, which counts against sections with many weights. Where updates need
all gradients, the gradients are alive whatever the plan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import add
from typing import Any

from ...planning import BudgetTooSmallError, Chain
from ...planning.single_replay import (
    replay_seconds,
    sections_peak_bytes,
    single_replay_sections,
    smallest_room_bytes,
)
from ..execution.array_sizes import spec_bytes
from ..keras_graph.call_graph import Call, Graph, Key
from ..keras_graph.cut_points import checkpoint_places
from ..measures.backend_measures import PLAIN_UPDATES_WAIT, LayerProfiler
from ..measures.cost_record import LayerCost, Sources

_BACKWARD = 2.0  # a backward pass costs two forward passes: one product for each operand
_STEP = 0.9  # the budgets to try are this much apart

Sections = tuple[int, ...]  # their first steps


@dataclass(frozen=True)
class Prediction:
    """What the plans of a model are predicted to need and to cost.

    Attributes:
        chain: The model in sections.
        plain_peak_bytes: The peak without checkpoints, where no layer stands in a section.
        places: Positions of the calls that end a step.
        cut_seconds: Calls of recurrent layers, by position, with the cost of their forward pass.
            Cut along time, they run forward once more.
        cut_peak_bytes: The peak where nothing but that is done.
        weight_gradient_bytes: Per step, the gradients of its weights, which stay until its section
            has run backward.
    """

    chain: Chain
    plain_peak_bytes: int
    places: tuple[int, ...]
    cut_seconds: Mapping[int, float]
    cut_peak_bytes: int
    weight_gradient_bytes: tuple[int, ...]

    def peak_bytes(self, sections: Sections) -> int:
        """Return the peak of a step with these sections."""
        if len(sections) == 1:
            return self.plain_peak_bytes
        return sections_peak_bytes(self.chain, sections, self.weight_gradient_bytes)

    def extra_seconds(self, sections: Sections) -> float:
        """Return what a step with these sections costs more than one without checkpoints."""
        if len(sections) == 1:
            return 0.0
        last = self.places[sections[-1] - 1]
        # Those in front of it are replayed with their sections.
        cut = sum(seconds for position, seconds in self.cut_seconds.items() if position > last)
        return replay_seconds(self.chain, sections) + cut

    def cheapest_sections(self, *, budget_bytes: int) -> Sections:
        """Return the sections that replay least, and of several such those with the smallest peak.

        Raises BudgetTooSmallError, which carries the smallest budget that would do.
        """
        if budget_bytes >= self.plain_peak_bytes:
            return (0,)
        chain = self.chain
        gradients = self.weight_gradient_bytes
        fitting = partial(single_replay_sections, chain, weight_gradient_bytes=gradients)
        smallest_room = partial(smallest_room_bytes, chain, weight_gradient_bytes=gradients)
        # Less than the whole model as one section.
        enough = sections_peak_bytes(chain, (0,), gradients) - chain.fixed_bytes - 1
        room = min(budget_bytes - chain.fixed_bytes, enough)
        sections = fitting(room_bytes=room) if room >= 0 else None
        if sections is None:
            least = max(0, smallest_room(seconds=float("inf"), room_bytes=enough))
            fits = fitting(room_bytes=least) is not None
            smallest = (
                min(chain.fixed_bytes + least, self.plain_peak_bytes)
                if fits
                else self.plain_peak_bytes
            )
            raise BudgetTooSmallError(
                "any sections", budget_bytes=budget_bytes, smallest_budget_bytes=smallest
            )
        seconds = replay_seconds(chain, sections)
        leanest = fitting(room_bytes=smallest_room(seconds=seconds, room_bytes=room))
        assert leanest is not None  # the room was found by asking just this
        return leanest

    def sections_for_all_budgets(self) -> list[Sections]:
        """Return the cheapest sections for smaller and smaller budgets.

        Each budget is at most ``_STEP`` of the peak before it.
        """
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
            budget_bytes = fixed_bytes + int(
                (min(self.peak_bytes(sections), budget_bytes) - fixed_bytes) * _STEP
            )


def predict(
    graph: Graph,
    specs: Mapping[Key, Any],
    *,
    fixed_bytes: int,
    gradients_wait: bool,
    timed: bool,
) -> Prediction:
    """Measure the calls of ``graph``, whose values have the types and shapes of ``specs``.

    ``fixed_bytes`` are alive whatever the plan. So are results and their gradients, until the
    step that makes them has run backward. Of the last step they count as its activations. And so
    are the gradients of weights that several steps share, and of all if ``gradients_wait``.
    """
    places = checkpoint_places(graph.calls)
    profiler = LayerProfiler(specs, timed=timed)
    measured = list(map(profiler, graph.calls))
    values = _Values(graph, specs)
    section = _held(graph.calls, measured, values, in_section=True)
    plain = _held(graph.calls, measured, values, in_section=False)
    cut = _cut_along_time(measured, section, plain)
    states, activations, plain_activations, cut_activations, costs = [], [], [], [], []
    working, plain_working, cut_working = [], [], []
    for before, end in pairwise([-1, *places]):
        states.append(values.crossing_bytes(before))
        results_bytes = 2 * values.result_bytes(before, end)
        if end != places[-1]:
            fixed_bytes += results_bytes
            results_bytes = 0
        kept_bytes = results_bytes + values.made_bytes(section.kept, before, end)
        plain_kept_bytes = results_bytes + values.made_bytes(plain.kept, before, end)
        calls = slice(before + 1, end + 1)
        section_own = sum(section.own_bytes[calls])
        plain_own = sum(plain.own_bytes[calls])
        activations.append(min(section_own, plain_own) + kept_bytes)
        plain_activations.append(plain_own + plain_kept_bytes)
        cut_activations.append(sum(cut.own_bytes[calls]) + plain_kept_bytes)
        costs.append(sum(needs.cost for needs in measured[calls]))
        working.append(max(section.working_bytes[calls]))
        plain_working.append(max(plain.working_bytes[calls]))
        cut_working.append(max(cut.working_bytes[calls]))
    gradients, shared_bytes = _weight_gradients(graph.calls, places)
    if gradients_wait:
        shared_bytes += sum(gradients)
        gradients = (0,) * len(places)
    fixed_bytes += shared_bytes
    chain = Chain(
        state_bytes=states,
        activation_bytes=activations,
        working_bytes=working,
        forward_seconds=costs,
        backward_seconds=[_BACKWARD * cost for cost in costs],
        fixed_bytes=fixed_bytes,
    )
    # Without sections each gradient is alive beside the step that makes it. In a network of
    # convolutions XLA for CPUs copies weights instead (benchmarks/notes/predictions.md).
    plain_chain = replace(chain, activation_bytes=plain_activations, working_bytes=plain_working)
    if PLAIN_UPDATES_WAIT or any(needs.is_convolution for needs in measured):
        plain_chain = replace(plain_chain, fixed_bytes=fixed_bytes + sum(gradients))
    else:
        plain_chain = _with_gradients(plain_chain, gradients)
    cut_chain = replace(chain, activation_bytes=cut_activations, working_bytes=cut_working)
    cut_chain = _with_gradients(cut_chain, gradients)
    return Prediction(
        chain=chain,
        plain_peak_bytes=plain_chain.plain_peak_bytes,
        places=tuple(places),
        cut_seconds={n: needs.cost for n, needs in enumerate(measured) if needs.is_cut},
        cut_peak_bytes=cut_chain.plain_peak_bytes,
        weight_gradient_bytes=gradients,
    )


def _with_gradients(chain: Chain, gradient_bytes: Sequence[int]) -> Chain:
    """Return ``chain`` with the gradients of weights alive while their step runs."""
    working = list(map(add, chain.working_bytes, gradient_bytes))
    return replace(chain, working_bytes=working)


def _weight_gradients(calls: Sequence[Call], places: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the bytes of the gradients of each step's own weights, and of those several share."""
    steps_of: dict[int, set[int]] = defaultdict(set)
    bytes_of: dict[int, int] = {}
    for position, call in enumerate(calls):
        for variable in getattr(call.operation, "trainable_variables", ()):
            steps_of[id(variable)].add(bisect_left(places, position))
            bytes_of[id(variable)] = spec_bytes(variable)
    own_bytes, shared_bytes = [0] * len(places), 0
    for variable, steps in steps_of.items():
        if len(steps) == 1:
            own_bytes[min(steps)] += bytes_of[variable]
        else:
            shared_bytes += bytes_of[variable]
    return tuple(own_bytes), shared_bytes


class _Values:
    """The values of a graph with their sizes, and between which calls they are there."""

    def __init__(self, graph: Graph, specs: Mapping[Key, Any]) -> None:
        self.bytes_of = {key: spec_bytes(spec) for key, spec in specs.items()}
        self._results = graph.outputs
        self._lasting = {*graph.inputs, *graph.outputs, *graph.initial_states}  # whatever the plan
        self._last_reader: dict[Key, int] = {}
        self._made_by: dict[Key, int] = {}
        for n, call in enumerate(graph.calls):
            self._last_reader.update(dict.fromkeys(call.inputs, n))
            self._made_by.update(dict.fromkeys(call.outputs, n))

    def crossing_bytes(self, before: int) -> int:
        """Return the bytes that calls up to ``before`` make and later ones read."""
        crossing_bytes = 0
        for key, n in self._made_by.items():
            is_crossing = n <= before < self._last_reader.get(key, -1)
            if is_crossing and key not in self._lasting:
                crossing_bytes += self.bytes_of[key]
        return crossing_bytes

    def made_bytes(self, kept: Set[Key], before: int, end: int) -> int:
        """Return the bytes of ``kept`` values made behind call ``before``, up to ``end``."""
        return self._bytes_made_among(kept - self._lasting, before, end)

    def result_bytes(self, before: int, end: int) -> int:
        """Return the bytes of the model's results that are made there."""
        return self._bytes_made_among(self._results, before, end)

    def _bytes_made_among(self, keys: Iterable[Key], before: int, end: int) -> int:
        made_bytes = 0
        for key in keys:
            if before < self._made_by.get(key, -1) <= end:
                made_bytes += self.bytes_of[key]
        return made_bytes


@dataclass(frozen=True)
class _Held:
    """The values ``kept`` for the backward pass, and the own and working bytes of calls."""

    kept: Set[Key]
    own_bytes: Sequence[int]
    working_bytes: Sequence[int]


def _cut_along_time(measured: Sequence[LayerCost], section: _Held, plain: _Held) -> _Held:
    """Return what the calls hold where only recurrent layers are cut along time."""
    own_bytes, working_bytes = list(plain.own_bytes), list(plain.working_bytes)
    for n, needs in enumerate(measured):
        if needs.is_cut:
            own_bytes[n] = section.own_bytes[n]
            working_bytes[n] = section.working_bytes[n]
    return _Held(plain.kept, own_bytes, working_bytes)


def _held(
    calls: Sequence[Call], measured: Sequence[LayerCost], values: _Values, *, in_section: bool
) -> _Held:
    """Return what the ``calls`` hold in a section, or in a model without checkpoints.

    What a backward pass computes with again is followed, through the calls that make it, to the
    arrays it comes from.
    """
    arrays: set[Key] = set()  # operands of products
    recomputed: set[Key] = set()  # values that are computed again
    kept: set[Key] = set()
    own_bytes, working_bytes = [0] * len(calls), [0] * len(calls)
    size = values.bytes_of
    for n, (call, needs) in reversed(list(enumerate(zip(calls, measured)))):
        own = dict(needs.kept_in_section if in_section else needs.kept)
        own_results = sum(size[call.outputs[number]] for number in needs.needs)
        traced_bytes = sum(own.values()) + own_results
        found = needs.workspace(in_section=in_section)
        # The bytes handed on include a copy of an input, which then need not be kept itself.
        copied = frozenset[int]() if found is None else found.copied_inputs
        arrays.update(map(call.inputs.__getitem__, needs.multiplies - copied))
        recomputed.update(map(call.inputs.__getitem__, needs.reads - copied))
        sources_of_outputs = needs.sources_in_section if in_section else needs.sources
        for number, (key, sources) in enumerate(zip(call.outputs, sources_of_outputs)):
            is_array = sources is None or (
                not in_section and _is_made_of_several(size[key], sources)
            )
            if key in arrays or number in needs.needs or (key in recomputed and is_array):
                kept.add(key)
            if key in recomputed and not is_array and sources is not None:
                own.update(sources[0])
                recomputed.update(map(call.inputs.__getitem__, sources[1]))
        given_bytes = sum(map(size.__getitem__, call.inputs))
        working_bytes[n] = given_bytes + sum(map(size.__getitem__, call.outputs))
        own_bytes[n] = sum(own.values())
        if found is not None:
            own_bytes[n] = max(0, own_bytes[n] + found.handed_on_bytes - traced_bytes)
            working_bytes[n] = max(given_bytes + found.forward_bytes, found.backward_bytes)
    return _Held(kept, own_bytes, working_bytes)


def _is_made_of_several(value_bytes: int, sources: Sources) -> bool:
    """Whether a layer computes a value from more than one array of its own as large as the value.

    A gelu is made of the product and of its error function. XLA repeats no such computation in
    kernels that read the result, which would read more that way, so the result is an array.
    """
    return sum(own_bytes >= value_bytes for own_bytes in sources[0].values()) > 1
