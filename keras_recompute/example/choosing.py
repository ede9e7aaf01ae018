"""The example's ``--checkpoints auto``: the fastest plan that keeps to a memory budget once it is compiled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError
from ..planning import BudgetTooSmallError
from ..planning.within import first_within
from ..sizes import format_bytes
from .cuts import Cut, cuts

if TYPE_CHECKING:
    from .session import Session


@dataclass
class Choice:
    """What was chosen from which plans, and what is known of them: predicted bytes of all, compiled ones of those tried."""

    budget_bytes: int
    steps: int
    predicted: dict[Cut, int]
    compiled: dict[Cut, int] = field(default_factory=dict)
    chosen: Cut | None = None

    @property
    def next_faster(self) -> Cut | None:
        """The plan before the chosen one, which did not fit."""
        before = list(self.predicted)[: self._number]
        return before[-1] if before else None

    @property
    def next_cheaper(self) -> Cut | None:
        """The first plan after the chosen one that is predicted to need less."""
        if self.chosen is None:
            return None
        after = list(self.predicted)[self._number + 1 :]
        return next((cut for cut in after if self.predicted[cut] < self.predicted[self.chosen]), None)

    @property
    def why(self) -> str:
        """Why the chosen plan was chosen, in words."""
        assert self.chosen is not None
        needed, predicted = self.compiled[self.chosen], self.predicted[self.chosen]
        return (
            f"the fastest of {len(self.predicted)} plans that fits {format_bytes(self.budget_bytes)}: it needs "
            f"{format_bytes(needed)} as compiled, {format_bytes(predicted)} as predicted"
        )

    def lines(self) -> list[str]:
        """Return what to say about the choice."""
        assert self.chosen is not None
        said = [f"plan: {self.chosen} ({self.chosen.why(self.steps)})", f"why: {self.why}"]
        if self.next_faster is not None:
            said.append(f"next faster: {self._needs(self.next_faster)}, too much")
        cheaper = self.next_cheaper
        said.append(f"next cheaper: {self._needs(cheaper)}" if cheaper else "next cheaper: none, no plan needs less")
        return said

    def fields(self) -> dict[str, Any]:
        """Return the same for a JSON file; the plan itself is in the fields that every run has."""
        found: dict[str, Any] = {"memory_budget_bytes": self.budget_bytes}
        found["plans_compiled"] = [self._row(cut) for cut in self.compiled]
        if self.chosen is not None:
            found["needed_bytes"] = self.compiled[self.chosen]
            found["why"] = self.why
            found["next_faster"] = self._row(self.next_faster)
            found["next_cheaper"] = self._row(self.next_cheaper)
        return found

    @property
    def _number(self) -> int:
        return 0 if self.chosen is None else list(self.predicted).index(self.chosen)

    def _needs(self, cut: Cut) -> str:
        if cut in self.compiled:
            return f"{cut}, {format_bytes(self.compiled[cut])} as compiled"
        return f"{cut}, {format_bytes(self.predicted[cut])} as predicted"

    def _row(self, cut: Cut | None) -> dict[str, Any] | None:
        if cut is None:
            return None
        return {
            "checkpoints": cut.checkpoints,
            "levels": cut.levels,
            "recompute": cut.recompute,
            "predicted_peak_bytes": self.predicted[cut],
            "needed_bytes": self.compiled.get(cut),
        }


def choose(session: Session) -> Choice:
    """Build and compile the fastest plan that needs at most ``--memory-budget``; ``session`` holds it then.

    Needed are the always-live bytes and those the allocator reserves, as the compiled program says. Raises
    InvalidArgumentError with the smallest budget that would do where no plan fits.
    """
    arguments = session.arguments
    options = cuts(arguments.seq_len, levels=arguments.levels)
    if not options:
        raise InvalidArgumentError(
            f"--levels {arguments.levels}: no number of sections of {arguments.seq_len} steps can be grouped so; leave it out"
        )
    choice = Choice(arguments.memory_budget, arguments.seq_len, {cut: session.predicted_bytes(cut) for cut in options})

    def needed_bytes(cut: Cut) -> int:
        session.build(cut)
        session.compile()
        choice.compiled[cut] = session.needed_bytes
        return session.needed_bytes

    try:
        choice.chosen = first_within(
            options,
            budget_bytes=choice.budget_bytes,
            predicted_bytes=choice.predicted.__getitem__,
            needed_bytes=needed_bytes,
        )
    except BudgetTooSmallError as error:
        session.results.update(choice.fields(), smallest_budget_bytes=error.smallest_budget_bytes)
        least = min(choice.compiled, key=choice.compiled.__getitem__)
        raise InvalidArgumentError(
            f"--memory-budget {format_bytes(choice.budget_bytes)}: no plan fits. The smallest budget that would do is "
            f"{error.smallest_budget_bytes} bytes ({format_bytes(error.smallest_budget_bytes)}), for {least}"
        ) from None
    session.results.update(choice.fields())
    return choice
