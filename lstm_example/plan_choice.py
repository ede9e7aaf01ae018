"""``--checkpoints auto``: the fastest plan whose compiled program fits a memory budget."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Callable

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.keras_backend import TENSORFLOW, current_backend
from keras_recompute.planning import BudgetTooSmallError
from keras_recompute.planning.compile_search import cheapest_within_budget
from keras_recompute.sizes import format_bytes

from .memory_check import predicted_bytes
from .options import Options
from .sequence_plans import SequencePlan, plans_for

# The share of a peak by which the formula may be wrong. It is of TensorFlow's kr.LSTM and kr.GRU.
PREDICTION_ERROR = 0.1


@dataclass
class Choice:
    """The plans to choose from, their predicted and compiled bytes, and the chosen one."""

    budget_bytes: int
    steps: int
    predicted: dict[SequencePlan, int]
    compiled: dict[SequencePlan, int] = field(default_factory=dict)
    chosen: SequencePlan | None = None
    smallest_budget_bytes: int | None = None  # that would do, where no plan fits

    def choose(self, needed_bytes: Callable[[SequencePlan], int]) -> SequencePlan:
        """Compile plans until one needs at most the budget, and return it: the fastest that does.

        It is the last one that is compiled. ``needed_bytes`` compiles a plan and returns its
        always-live and reserved bytes. Raises InvalidArgumentError with the smallest budget that a
        plan fits, if none fits this one.
        """
        try:
            self.chosen = chosen = cheapest_within_budget(
                list(self.predicted),
                budget_bytes=self.budget_bytes,
                predicted_bytes=self.predicted.__getitem__,
                needed_bytes=needed_bytes,
                known=self.compiled,
                prediction_error=PREDICTION_ERROR if current_backend() == TENSORFLOW else None,
            )
        except BudgetTooSmallError as error:
            self.smallest_budget_bytes = smallest = error.smallest_budget_bytes
            least = min(self.compiled, key=self.compiled.__getitem__)
            raise InvalidArgumentError(
                f"--memory-budget {format_bytes(self.budget_bytes)}: no plan fits. The smallest "
                f"budget that suffices is {smallest} bytes ({format_bytes(smallest)}), for {least}"
            ) from None
        return chosen

    @property
    def why(self) -> str:
        """The reason of the choice, as text."""
        assert self.chosen is not None
        needed, predicted = self.compiled[self.chosen], self.predicted[self.chosen]
        return (
            f"the fastest of {len(self.predicted)} plans that fits "
            f"{format_bytes(self.budget_bytes)}: it needs {format_bytes(needed)} as compiled, "
            f"{format_bytes(predicted)} as predicted"
        )

    def lines(self) -> list[str]:
        """Return the lines to print about the choice."""
        assert self.chosen is not None
        said = [f"plan: {self.chosen} ({self.chosen.why(self.steps)})", f"why: {self.why}"]
        faster, cheaper = self._neighbours()
        if faster:
            said.append(f"next faster: {self._needs(faster)}, too much")
        least = "none, no plan needs less"
        return [*said, f"next cheaper: {self._needs(cheaper) if cheaper else least}"]

    def fields(self) -> dict[str, Any]:
        """Return the choice for a JSON file; the plan itself is in the fields of every run."""
        found: dict[str, Any] = {
            "memory_budget_bytes": self.budget_bytes,
            "plans_compiled": list(map(self._row, self.compiled)),
        }
        if self.chosen is not None:
            found.update(needed_bytes=self.compiled[self.chosen], why=self.why)
            found["next_faster"], found["next_cheaper"] = map(self._row, self._neighbours())
        if self.smallest_budget_bytes is not None:
            found["smallest_budget_bytes"] = self.smallest_budget_bytes
        return found

    def _neighbours(self) -> tuple[SequencePlan | None, SequencePlan | None]:
        """Return the faster plan that did not fit, and the next one predicted to need less."""
        assert self.chosen is not None
        plans, most = list(self.predicted), self.predicted[self.chosen]
        number = plans.index(self.chosen)
        cheaper = (plan for plan in plans[number + 1 :] if self.predicted[plan] < most)
        return plans[number - 1] if number else None, next(cheaper, None)

    def _needs(self, plan: SequencePlan) -> str:
        is_known = plan in self.compiled
        count = (self.compiled if is_known else self.predicted)[plan]
        return f"{plan}, {format_bytes(count)} as {'compiled' if is_known else 'predicted'}"

    def _row(self, plan: SequencePlan | None) -> dict[str, Any] | None:
        if plan is None:
            return None
        return {
            **asdict(plan),
            "predicted_peak_bytes": self.predicted[plan],
            "needed_bytes": self.compiled.get(plan),
        }


def choice_for(options: Options) -> Choice:
    """Return the plans to choose from for ``--memory-budget``.

    Raises InvalidArgumentError if there are none.
    """
    plans = plans_for(options.seq_len, levels=options.levels)
    if not plans:
        raise InvalidArgumentError(
            f"--levels {options.levels}: no number of sections of {options.seq_len} steps can be "
            "grouped in so many levels; leave it out"
        )
    assert options.memory_budget is not None
    return Choice(
        options.memory_budget,
        options.seq_len,
        {plan: predicted_bytes(options, plan) for plan in plans},
    )
