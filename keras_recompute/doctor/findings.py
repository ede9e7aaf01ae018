"""What holds the memory of a training step, and what checkpoints make of it, as compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras

from ..errors import DoesNotFitError, InvalidArgumentError, RecomputeError, XlaUnsupportedError
from ..liveness import Program, profile
from ..liveness.keras_step import check_compiled
from ..models.classes.model import Model
from ..models.measures.backend_measures import text_of_specs, trained_step
from ..models.measures.sampled_steps import batch_of, build_on, is_complete
from ..models.measures.step_peak import StepPeaks
from ..models.plans.checkpointed import (
    check_trainable,
    checkpointed,
    functional_model,
    graph_of,
    is_no_graph,
)
from ..models.plans.memory_plan import plan
from ..models.plans.plan_candidates import MemoryPlan
from ..planning import BudgetTooSmallError

_SMALLEST = "smallest"


@dataclass(frozen=True)
class Saving:
    """What one line of code makes of the step.

    Attributes:
        line: The line, for a compiled ``model``.
        peak_bytes: The peak of the step that it trains, found like that of the plain step.
        time_ratio: The predicted cost of a step over that of a plain one; None if not known.
    """

    line: str
    peak_bytes: int
    time_ratio: float | None = None


class Examination:
    """The training step of a compiled ``model`` on a ``batch`` like those of ``fit``.

    Variables that are missing are made, and keep their values. ``device`` is a name as ``profile``
    takes it. Raises InvalidArgumentError for a model that cannot be trained or built so.
    """

    def __init__(self, model: keras.Model, batch: tuple[Any, ...], *, device: str | None) -> None:
        self.model, self._device = model, device
        self.batch = batch_of(batch)
        check_compiled(model, self.batch)
        check_trainable(model)
        self._was_complete = is_complete(model)
        build_on(model, self.batch)
        self.is_graph = not is_no_graph(model)

    @cached_property
    def plain(self) -> Program | None:
        """The record of the step; None where XLA lacks an operation, or it does not fit."""
        try:
            if self.is_graph:
                return self._peaks.step.compiled(self.model, device=self._device)
            return profile(self.model, *self.batch, device=self._device)
        except (XlaUnsupportedError, DoesNotFitError):
            return None

    @cached_property
    def plain_bytes(self) -> int:
        """The peak of the step; with a device, all that a run needs there."""
        if self.plain is not None:
            return self.plain.run_bytes if self._device else self.plain.peak_bytes
        return self._peaks.of(self.model)

    @property
    def shapes(self) -> str:
        """Types and shapes of the batch, as text."""
        return text_of_specs(keras.tree.flatten(self.batch))

    @property
    def step(self) -> str:
        """What the step is, and how its peak was found, in words."""
        return self._peaks.method if self.is_graph else "compiled: its own training step"

    def savings(self, budget_bytes: int | None) -> Iterator[Saving]:
        """Yield what lines of code make of the step: the simplest, the leanest, and a plan.

        The plan is that for ``budget_bytes``, by default for half of the plain step if one fits.
        Raises InvalidArgumentError for a model that has checkpoints already or nothing to
        recompute, and BudgetTooSmallError for a budget that no plan fits.
        """
        if self.is_graph:
            yield from self._evenly()
        found = []
        for each in self._plans(budget_bytes):
            if each.where and each.where not in found:
                found.append(each.where)
                yield self._saving_by(each)

    @cached_property
    def _peaks(self) -> StepPeaks:
        x, *targets = self.batch
        return StepPeaks(trained_step(self.model, x, tuple(targets)), self._device)

    def _evenly(self) -> Iterator[Saving]:
        """Yield checkpoints after every n layers, for the root of their number, if there can be."""
        # About the root of the number of layers takes the least memory (Chen et al. 2016, 4.1).
        every = max(2, round(len(graph_of(functional_model(self.model)).calls) ** 0.5))
        try:
            candidate = checkpointed(self.model, every=every)
        except InvalidArgumentError:  # no place, or checkpoints already, which a plan says
            return
        line = f"model = kr.checkpointed(model, every={every})"
        yield Saving(line, self._peaks.of(candidate))

    def _plans(self, budget_bytes: int | None) -> Iterator[MemoryPlan]:
        """Yield the leanest plan, and the cheapest within the budget."""
        if self.is_graph:
            yield self._plan(_SMALLEST)
        if budget_bytes is not None:
            yield self._plan(budget_bytes)
            return
        try:
            yield self._plan(self.plain_bytes // 2)
        except BudgetTooSmallError as refusal:
            # Of a graph the leanest plan was found before.
            least = refusal.smallest_budget_bytes
            if not self.is_graph and least < self.plain_bytes:
                yield self._plan(least)

    def _plan(self, budget: int | str) -> MemoryPlan:
        return plan(self.model, memory_budget=budget, sample=self.batch, device=self._device)[1]

    def _saving_by(self, found: MemoryPlan) -> Saving:
        """Return a plan with its line: its places, or the budget where no argument names them."""
        peak = found.compiled_peak_bytes or found.measured_peak_bytes or found.predicted_peak_bytes
        line = f"model = {found.line}"
        if not self._is_named(found):
            line = f"model, plan = kr.plan(model, memory_budget={peak}, sample=(x, y))"
        elif not self._was_complete:
            line = f"model(x)  # makes its layers' weights\n{line}"
        return Saving(line, peak, found.time_ratio)

    def _is_named(self, found: MemoryPlan) -> bool:
        """Whether the line of a plan places its checkpoints, which may stand in models inside."""
        try:
            candidate = checkpointed(self.model, **found.where)
        except RecomputeError:
            return False
        is_placed = isinstance(candidate, Model) and bool(found.checkpoints)
        return not is_placed or len(candidate.plan.checkpoints) == len(found.checkpoints)
