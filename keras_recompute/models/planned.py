"""``plan``: checkpoints for a Keras model chosen by a memory budget.

The layers of a model in running order are a chain of steps, cut wherever all that ran before leads to one layer. Each step has
the bytes that cross its border, the bytes that its backward pass needs and its cost, measured by ``measure``. What a Model
carries out is one replay of each section but the last, so the best such sections within the budget are taken, exactly:
``planning.twice``. ``planning.optimal`` would replay steps more often in less memory, which no Model does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf

from ..errors import InvalidArgumentError
from ..layers.recomputation_checkpoint import RecomputationCheckpoint
from ..planning import BudgetTooSmallError, Chain, simulate
from ..planning.budget import least
from ..planning.twice import replay_seconds, section_actions, sections_run_twice, smallest_room_bytes
from ..sizes import format_bytes, parse_bytes
from .batch import specs_of
from .checkpointed import check_trainable, functional_model, graph_of, with_checkpoints
from .graph import Call, Graph, Key
from .measure import Measure, Measured, spec_bytes
from .model import Model
from .placement import ancestors

_BACKWARD = 2.0  # a backward pass costs two forward passes: one product for each operand
_STEP = 0.9  # the budgets to try are this much apart


@dataclass(frozen=True)
class MemoryPlan:
    """Where the checkpoints are and what they are predicted to do.

    ``checkpoints`` are the names of the layers behind which they stand. Peaks are of a training step, in bytes: weights,
    their gradients, what the optimiser keeps if the model is compiled, activations; the batch that is fed in is not among
    them. ``plain_peak_bytes`` is that without checkpoints. ``time_ratio`` compares the cost of a step with that of a step
    without checkpoints. ``chain`` is what was measured, one step per place where a checkpoint could stand.
    """

    checkpoints: tuple[str, ...]
    budget_bytes: int
    predicted_peak_bytes: int
    plain_peak_bytes: int
    time_ratio: float
    chain: Chain = field(repr=False)

    def __str__(self) -> str:
        where = f"{len(self.checkpoints)} checkpoints" if self.checkpoints else "no checkpoints"
        return (
            f"{where}: predicted peak {format_bytes(self.predicted_peak_bytes)} within {format_bytes(self.budget_bytes)}, "
            f"{format_bytes(self.plain_peak_bytes)} without; time x {self.time_ratio:.2f}"
        )


def plan(
    model: keras.Model,
    *,
    memory_budget: int | str,
    batch_size: int | None = None,
    sample: Any = None,
    timed: bool = False,
    needed_bytes: Callable[[Model], int] | None = None,
) -> tuple[Model, MemoryPlan]:
    """Return ``model`` with checkpoints so that training needs at most ``memory_budget``, and the plan.

    ``model`` is what ``checkpointed`` takes for ``every=``, and the result what that returns; the two models share layers and
    weights, and the result is not compiled. ``memory_budget`` is a number of bytes or a text such as ``"128MiB"``, for batches
    of ``batch_size``, which may be left out where the inputs have a fixed one. ``sample`` is a batch as it is given to ``fit``
    (``x``, ``(x, y)``, or a data set of them), by which open sizes are fixed: of the batch, where ``batch_size`` is not given,
    and of sequences. The cheapest plan predicted to fit is taken, by operation counts or, if ``timed``,
    by running each layer; a larger budget never costs more.

    A prediction is no proof: compilers keep more or less than it says (docs/choosing.md). With ``needed_bytes``, which
    compiles a model and returns what its program needs, it only says which plans to try: the cheapest for which
    ``needed_bytes`` is at most the budget is looked for, by halves, and the model that is returned was found to fit.

    Raises BudgetTooSmallError with the smallest budget that would do, InvalidArgumentError for a model of another kind, one
    that has checkpoints already or no trainable weights, a size that stays unknown, or a sample that does not fit, and
    UnsupportedError for a layer that cannot be measured.
    """
    budget_bytes = parse_bytes(memory_budget)
    functional = functional_model(model)
    check_trainable(model)
    graph = graph_of(functional)
    if any(isinstance(call.operation, RecomputationCheckpoint) for call in graph.calls):
        raise InvalidArgumentError(f"{model.name!r} has RecomputationCheckpoint layers already: plan a model without any")
    specs = specs_of(functional, graph, batch_size=batch_size, sample=sample)
    places = _places(graph.calls)
    chain = _chain(graph, places, specs, fixed_bytes=_fixed_bytes(model, graph, specs), timed=timed)

    def planned(sections: tuple[int, ...]) -> tuple[Model, MemoryPlan]:
        outcome = simulate(chain, section_actions(len(chain), sections))
        positions = [places[first - 1] for first in sections[1:]]
        found = MemoryPlan(
            checkpoints=tuple(graph.calls[position].operation.name for position in positions),
            budget_bytes=budget_bytes,
            predicted_peak_bytes=outcome.peak_bytes,
            plain_peak_bytes=chain.plain_peak_bytes,
            time_ratio=outcome.seconds / chain.plain_seconds if chain.plain_seconds else 1.0,
            chain=chain,
        )
        return with_checkpoints(model, positions), found

    if needed_bytes is None:
        return planned(cheapest_sections(chain, budget_bytes=budget_bytes))
    options = sections_for_all_budgets(chain)
    tried: dict[int, tuple[Model, MemoryPlan]] = {}
    needed: dict[int, int] = {}

    def fits(number: int) -> bool:
        tried[number] = planned(options[number])
        needed[number] = needed_bytes(tried[number][0])
        return needed[number] <= budget_bytes

    first = least(len(options), fits)
    if first == len(options):
        raise BudgetTooSmallError(
            "any plan that was compiled", budget_bytes=budget_bytes, smallest_budget_bytes=min(needed.values())
        )
    return tried[first]


def cheapest_sections(chain: Chain, *, budget_bytes: int) -> tuple[int, ...]:
    """Return the first steps of the sections that replay least; of those equally cheap, the ones with the smallest peak.

    Raises BudgetTooSmallError, which carries the smallest budget that would do.
    """
    enough = chain.plain_peak_bytes - chain.fixed_bytes
    room = min(budget_bytes - chain.fixed_bytes, enough)
    sections = sections_run_twice(chain, room_bytes=room) if room >= 0 else None
    if sections is None:
        smallest = chain.fixed_bytes + smallest_room_bytes(chain, seconds=float("inf"), room_bytes=enough)
        raise BudgetTooSmallError("any sections", budget_bytes=budget_bytes, smallest_budget_bytes=smallest)
    seconds = replay_seconds(chain, sections)
    leanest = sections_run_twice(chain, room_bytes=smallest_room_bytes(chain, seconds=seconds, room_bytes=room))
    assert leanest is not None  # the room was found by asking just this
    return leanest


def sections_for_all_budgets(chain: Chain) -> list[tuple[int, ...]]:
    """Return the cheapest sections for ever smaller budgets, each at most ``_STEP`` of the peak before it, cheapest first."""
    found: list[tuple[int, ...]] = []
    budget_bytes = chain.plain_peak_bytes
    while True:
        try:
            sections = cheapest_sections(chain, budget_bytes=budget_bytes)
        except BudgetTooSmallError as error:
            if not found or budget_bytes >= error.smallest_budget_bytes:
                return found
            sections = cheapest_sections(chain, budget_bytes=error.smallest_budget_bytes)
            return found if sections == found[-1] else [*found, sections]
        found.append(sections)
        peak = simulate(chain, section_actions(len(chain), sections)).peak_bytes
        budget_bytes = chain.fixed_bytes + int((peak - chain.fixed_bytes) * _STEP)


def _places(calls: Sequence[Call]) -> list[int]:
    """Return the positions of the calls that all calls before them lead to, and the last position of all."""
    found = [n for n, needed in enumerate(ancestors(calls)) if needed == (1 << (n + 1)) - 1]
    return [*(n for n in found if n < len(calls) - 1), len(calls) - 1]


def _chain(graph: Graph, places: Sequence[int], specs: dict[Key, tf.TensorSpec], *, fixed_bytes: int, timed: bool) -> Chain:
    measure = Measure(specs, timed=timed)
    measured = [measure(call) for call in graph.calls]
    lasting = {*graph.inputs, *graph.outputs, *graph.initial_states}  # alive whatever the plan
    kept, own_bytes = _kept(graph.calls, measured)
    last_reader = {key: n for n, call in enumerate(graph.calls) for key in call.inputs}
    made_by = {key: n for n, call in enumerate(graph.calls) for key in call.outputs}
    states, activations, workings, costs = [], [], [], []
    for before, end in pairwise([-1, *places]):
        calls = range(before + 1, end + 1)
        crossing = [k for k, n in made_by.items() if n <= before < last_reader.get(k, -1) and k not in lasting]
        inside = [k for k, n in made_by.items() if before < n <= end and k in kept and k not in lasting]
        states.append(sum(spec_bytes(specs[key]) for key in crossing))
        activations.append(sum(own_bytes[n] for n in calls) + sum(spec_bytes(specs[key]) for key in inside))
        workings.append(
            max(sum(spec_bytes(specs[key]) for key in (*graph.calls[n].inputs, *graph.calls[n].outputs)) for n in calls)
        )
        costs.append(sum(measured[n].cost for n in calls))
    return Chain(
        state_bytes=states,
        activation_bytes=activations,
        working_bytes=workings,
        forward_seconds=costs,
        backward_seconds=[_BACKWARD * cost for cost in costs],
        fixed_bytes=fixed_bytes + max(states),  # a section starts from its input, which stays as long as it runs
    )


def _kept(calls: Sequence[Call], measured: Sequence[Measured]) -> tuple[set[Key], list[int]]:
    """Return the values of the model that stay for the backward pass, and the bytes that each call keeps of its own.

    What a backward pass computes with again is followed, through the calls that make it, to the arrays it comes from.
    """
    arrays: set[Key] = set()  # operands of products
    again: set[Key] = set()  # values that are computed again
    kept: set[Key] = set()
    own_bytes = [0] * len(calls)
    for n, (call, needs) in reversed(list(enumerate(zip(calls, measured)))):
        own = dict(needs.kept)
        arrays.update(call.inputs[i] for i in needs.multiplies)
        again.update(call.inputs[i] for i in needs.reads)
        for number, (key, sources) in enumerate(zip(call.outputs, needs.sources)):
            if key in arrays or number in needs.needs or (key in again and sources is None):
                kept.add(key)
            if key in again and sources is not None:
                own.update(sources[0])
                again.update(call.inputs[i] for i in sources[1])
        own_bytes[n] = sum(own.values())
    return kept, own_bytes


def _fixed_bytes(model: keras.Model, graph: Graph, specs: dict[Key, tf.TensorSpec]) -> int:
    """Return what is alive whatever the plan: weights, gradients, the optimiser's values, results and their gradients."""

    def size(variables: Sequence[keras.Variable]) -> int:
        return sum(spec_bytes(tf.TensorSpec(v.shape, v.dtype)) for v in variables)

    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    slots = size(optimizer.variables) if optimizer is not None else 0
    results = sum(spec_bytes(specs[key]) for key in graph.outputs)
    return size(model.variables) + size(model.trainable_variables) + slots + 2 * results
