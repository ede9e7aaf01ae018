"""Search for the cheapest plan within a budget, where only compiling gives the exact need.

A prediction is quick and may be wrong; compiling is slow and exact. So the prediction decides what
to compile, and only what was compiled is returned.
"""

from __future__ import annotations

import math
from typing import Callable, MutableMapping, Sequence, TypeVar

from .budget import BudgetTooSmallError, bisect_smallest, check_budget

Option = TypeVar("Option")

LEANEST = 3
"""How many options, those predicted to need least, are compiled where nothing fits."""


def cheapest_within_budget(
    options: Sequence[Option],
    *,
    budget_bytes: int,
    predicted_bytes: Callable[[Option], int],
    needed_bytes: Callable[[Option], int],
    known: MutableMapping[Option, int],
    prediction_error: float | None = None,
) -> Option:
    """Return the first of ``options`` that needs at most ``budget_bytes``.

    They come cheapest first. Passed over are options that are predicted to need as much as one
    before them. ``needed_bytes`` compiles an option; its answers are added to ``known``, which may
    hold earlier ones.

    With ``prediction_error``, the share by which a prediction may be wrong, nothing that is
    predicted to need more than that beyond the budget is compiled. The search goes from the first
    of the others on, so that the returned option is the last one compiled. Without it, the search
    begins with the option that is predicted to fit and goes on by halves.

    Raises BudgetTooSmallError with the least need that is known if none fits. With
    ``prediction_error`` the leanest are compiled before.
    """
    check_budget(budget_bytes)

    def fits(option: Option) -> bool:
        if option not in known:
            known[option] = needed_bytes(option)
        return known[option] <= budget_bytes

    most = math.inf if prediction_error is None else budget_bytes * (1 + prediction_error)
    promising: list[Option] = []
    predicted: list[int] = []
    for option in options:
        need = predicted_bytes(option)
        if need <= most:
            promising.append(option)
            predicted.append(need)
            most = need - 1
    guesses: Sequence[int] = range(len(promising))
    if prediction_error is None:
        guess = min(_first_within(predicted, budget_bytes), len(promising) - 1)
        guesses = guess, guess - 1, guess + 1
    enough = _first_within([known.get(each, math.inf) for each in promising], budget_bytes)
    found = bisect_smallest(enough, lambda n: fits(promising[n]), guesses=guesses)
    if found < len(promising):
        return promising[found]
    if prediction_error is not None:
        # Nothing fits, as far as predicted: make sure of it, and name a budget.
        for option in sorted(options, key=predicted_bytes)[:LEANEST]:
            if fits(option):
                return option
    raise BudgetTooSmallError(
        "any plan", budget_bytes=budget_bytes, smallest_budget_bytes=min(known.values())
    )


def _first_within(needs: Sequence[float], budget_bytes: int) -> int:
    """Return the number of the first of ``needs`` within the budget, else how many there are."""
    for number, need in enumerate(needs):
        if need <= budget_bytes:
            return number
    return len(needs)
