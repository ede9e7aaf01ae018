"""The search for the cheapest plan of a model whose compiled program fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ...planning import BudgetTooSmallError
from ...planning.compile_search import cheapest_within_budget
from ..classes.model import Model
from ..keras_graph.cut_points import evenly_spaced_cuts
from .peak_prediction import Prediction, Sections
from .plan_candidates import PLAIN, Candidates, CompiledPeaks, Known, MemoryPlan


def cheapest_predicted(candidates: Candidates) -> tuple[Model, MemoryPlan]:
    """Return the cheapest plan that is predicted to fit: layers cut along time, or checkpoints."""
    prediction, budget_bytes = candidates.prediction, candidates.budget_bytes
    cut_bytes = prediction.cut_peak_bytes if prediction.cut_seconds else prediction.plain_peak_bytes
    if cut_bytes <= budget_bytes < prediction.plain_peak_bytes:
        return candidates.with_time_sections()
    with _naming_what_holds_most(candidates):
        try:
            return candidates.with_checkpoints(
                prediction.cheapest_sections(budget_bytes=budget_bytes)
            )
        except BudgetTooSmallError as refusal:
            smallest = min(refusal.smallest_budget_bytes, cut_bytes)
            raise BudgetTooSmallError(
                "any plan", budget_bytes=budget_bytes, smallest_budget_bytes=smallest
            ) from refusal


def leanest_predicted(candidates: Candidates) -> tuple[Model, MemoryPlan]:
    """Return the plan that is predicted to need least, with what it needs as its budget."""
    prediction = candidates.prediction
    leanest = prediction.peak_bytes(_leanest_sections(prediction))
    if prediction.cut_seconds:
        leanest = min(leanest, prediction.cut_peak_bytes)
    return cheapest_predicted(replace(candidates, budget_bytes=leanest))


def leanest_verified(candidates: Candidates, compiled: CompiledPeaks) -> tuple[Model, MemoryPlan]:
    """Return the plan that was found to need least, with what it needs as its budget.

    Compiled are the plain model, a checkpoint at every place, one about every ``sqrt(layers)``
    layers and, for each way to recompute, the plan that is predicted to need least.
    """
    prediction = candidates.prediction
    plans: dict[Any, tuple[Model, MemoryPlan]] = {}
    for sections in (PLAIN, _leanest_sections(prediction), *_usual_sections(candidates)):
        plans[sections] = candidates.with_checkpoints(sections)
    if prediction.cut_seconds:
        cut = candidates.with_time_sections()
        plans[cut[1].layers] = cut
    blocks = candidates.with_blocks(compiled)
    if blocks is not None:
        plans[blocks[1].layers] = blocks
    needs = {}
    for where, (candidate, _) in plans.items():
        needs[where] = compiled.peak_bytes(where, partial(_as_it_is, candidate))
    best = min(needs, key=needs.__getitem__)
    candidate, plan = plans[best]
    plan = replace(plan, budget_bytes=needs[best], plain_peak_bytes=needs[PLAIN])
    return candidate, compiled.with_peak(plan, needs[best])


def _as_it_is(candidate: Model) -> Model:
    return candidate


def _leanest_sections(prediction: Prediction) -> Sections:
    return min(prediction.sections_for_all_budgets(), key=prediction.peak_bytes)


def _usual_sections(candidates: Candidates) -> tuple[Sections, Sections]:
    """Return the usual choices: a section per step, and sections of about ``sqrt(layers)`` layers.

    Compiled, they may need less than the plan that is predicted to need least. Predictions count
    activations, and not what a compiler holds beside them.
    """
    places, calls = candidates.prediction.places, candidates.graph.calls
    ends = evenly_spaced_cuts(round(len(calls) ** 0.5), calls)
    even = [number for number, position in enumerate(places, start=1) if position in ends]
    return tuple(range(len(places))), (0, *even)


def cheapest_verified(candidates: Candidates, compiled: CompiledPeaks) -> tuple[Model, MemoryPlan]:
    """Return the cheapest plan that was found to fit.

    The plain model is compiled first. Where it fits nothing is recomputed. Where it does not, the
    plan may be to cut recurrent layers along time, then checkpoints, then blocks inside a layer.
    """

    def needed(sections: Sections) -> int:
        return compiled.peak_bytes(sections, lambda: candidates.with_checkpoints(sections)[0])

    candidates = replace(candidates, plain_peak_bytes=needed(PLAIN))
    fitting = PLAIN
    if needed(PLAIN) > candidates.budget_bytes:
        if candidates.prediction.cut_seconds:
            cut, plan = candidates.with_time_sections()
            bytes_needed = compiled.peak_bytes(plan.layers, lambda: cut)
            if bytes_needed <= candidates.budget_bytes:
                return cut, compiled.with_peak(plan, bytes_needed)
        try:
            with _naming_what_holds_most(candidates):
                fitting = _cheapest_sections(candidates, needed, compiled.known)
        except BudgetTooSmallError as refusal:
            found = candidates.with_blocks(compiled)
            if found is None:
                raise
            if found[1].predicted_peak_bytes > candidates.budget_bytes:
                raise too_small(candidates.budget_bytes, compiled.known) from refusal
            return found
    candidate, plan = candidates.with_checkpoints(fitting)
    return candidate, compiled.with_peak(plan, needed(fitting))


def _cheapest_sections(
    candidates: Candidates, needed: Callable[[Sections], int], known: Known
) -> Sections:
    """Return the cheapest sections whose ``needed`` bytes are in the budget.

    ``known`` has the needs that were found before, and those found here are added. Raises
    BudgetTooSmallError with the smallest budget that was found to do.
    """
    prediction = candidates.prediction
    options = [sections for sections in prediction.sections_for_all_budgets() if sections != PLAIN]
    try:
        return cheapest_within_budget(
            options,
            budget_bytes=candidates.budget_bytes,
            predicted_bytes=prediction.peak_bytes,
            needed_bytes=needed,
            known=known,
        )
    except BudgetTooSmallError:
        # What replays hold is predicted worst, and the shortest sections replay least at a time.
        for sections in _usual_sections(candidates):
            if needed(sections) <= candidates.budget_bytes:
                return sections
        raise too_small(candidates.budget_bytes, known) from None


@contextmanager
def _naming_what_holds_most(candidates: Candidates) -> Iterator[None]:
    """Add to a refusal the layer that holds more than half of the activations.

    It is added only where there are layers inside to recompute.
    """
    try:
        yield
    except BudgetTooSmallError as refusal:
        largest = candidates.largest()[1]
        if largest is not None:
            said = (
                f"{refusal}. Most activations are inside {largest.name!r}, a "
                f"{type(largest).__name__}, which can recompute its layers one by one: "
                "checkpointed(model, layers=...)"
            )
            refusal.args = (said,)
        raise


def too_small(budget_bytes: int, known: Known) -> BudgetTooSmallError:
    """Return the refusal with the smallest peak that was found, which may be the plain model's."""
    smallest = min(known.values())
    what = "any plan"
    if smallest == known.get(PLAIN):
        what = "the plain model, and no plan with recomputation needs less"
    return BudgetTooSmallError(what, budget_bytes=budget_bytes, smallest_budget_bytes=smallest)
