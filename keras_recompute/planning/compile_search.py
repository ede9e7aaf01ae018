"""Search for a plan or a batch size within a budget, where only compiling gives the exact need.

A prediction is quick and may be off by some share; compiling is slow and exact. So the prediction
decides what to compile, and only what was compiled is returned.
"""

from __future__ import annotations

from typing import Callable, Sequence, TypeVar

from .budget import BudgetTooSmallError, bisect_smallest, check_budget

Option = TypeVar("Option")

PREDICTION_ERROR = 0.1
"""The share of a peak by which a prediction may be wrong (see ``rnn_peak_formula``)."""
LEANEST = 3
"""How many options, those predicted to need least, are compiled where nothing fits."""


def first_within_budget(
    options: Sequence[Option],
    *,
    budget_bytes: int,
    predicted_bytes: Callable[[Option], int],
    needed_bytes: Callable[[Option], int],
) -> Option:
    """Return the first of ``options`` that needs at most ``budget_bytes``; they come fastest first.

    Compiles, by ``needed_bytes``, only options predicted within 10 % of the budget and below every
    option that turned out too large. The returned option is the last one compiled. Raises
    BudgetTooSmallError if none fits, with the least need of those compiled and of those predicted
    to need least.
    """
    check_budget(budget_bytes)
    predicted = [predicted_bytes(option) for option in options]
    needed: dict[int, int] = {}
    bar = budget_bytes * (1 + PREDICTION_ERROR)
    for number, option in enumerate(options):
        if predicted[number] <= bar and predicted[number] < min(
            (predicted[n] for n in needed), default=bar + 1
        ):
            needed[number] = needed_bytes(option)
            if needed[number] <= budget_bytes:
                return option
    # Nothing fits, as far as predicted: compile the leanest, to be sure and to name a budget.
    for number in sorted(range(len(options)), key=predicted.__getitem__)[:LEANEST]:
        if number not in needed:
            needed[number] = needed_bytes(options[number])
            if needed[number] <= budget_bytes:
                return options[number]
    raise BudgetTooSmallError(
        "any plan", budget_bytes=budget_bytes, smallest_budget_bytes=min(needed.values())
    )


def largest_within_budget(
    *,
    budget_bytes: int,
    predicted_bytes: Callable[[int], int],
    needed_bytes: Callable[[int], int],
    most: int = 2**20,
) -> int:
    """Return the largest count, such as a batch size, that needs at most ``budget_bytes``; or 0.

    Both functions must grow with the count. ``needed_bytes`` is first called where the prediction
    points, rescaled by each answer, and then half way between. It takes a handful of calls, and the
    result is proven: it fits, and one more does not. Counts above ``most`` are not tried.
    """
    check_budget(budget_bytes)

    def guess(below: int, scale: float) -> int:
        return (
            bisect_smallest(below, lambda count: predicted_bytes(count) * scale > budget_bytes) - 1
        )

    fits, too_many, scale, compiled = 0, most + 1, 1.0, 0
    while too_many - fits > 1:
        # Doubled while nothing has failed yet, as there is no upper bound to halve.
        half_way = (fits + too_many) // 2 if too_many <= most else 2 * fits
        # A poor prediction must not cost many compilations: after four answers, bisect.
        trial = guess(too_many, scale) if compiled < 4 else half_way
        trial = min(max(trial, fits + 1), too_many - 1)
        needed, compiled = needed_bytes(trial), compiled + 1
        scale = needed / max(1, predicted_bytes(trial))
        if needed <= budget_bytes:
            fits = trial
        else:
            too_many = trial
    return fits
