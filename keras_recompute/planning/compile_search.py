"""Searching within a budget where only compiling tells what a plan needs: the first of several
plans, the largest batch.

A prediction is quick and may be wrong by some share; compiling is slow and right. So the prediction
says what is worth compiling, and nothing is taken that was not compiled.
"""

from __future__ import annotations

from typing import Callable, Sequence, TypeVar

from .budget import BudgetTooSmallError, bisect_smallest, check_budget

Option = TypeVar("Option")

PREDICTION_ERROR = 0.1
"""The share of a peak by which a prediction may be wrong (see ``recurrent``)."""
LEANEST = 3
"""Of how many options the least need is looked for where nothing fits."""


def first_within_budget(
    options: Sequence[Option],
    *,
    budget_bytes: int,
    predicted_bytes: Callable[[Option], int],
    needed_bytes: Callable[[Option], int],
) -> Option:
    """Return the first of ``options`` that needs at most ``budget_bytes``; ``options`` come fastest
    first.

    Compiled, by ``needed_bytes``, are those that are not predicted to be far above the budget, nor
    to need as much as one that did not fit; the one that is returned last of all. Raises
    BudgetTooSmallError where none fits, with the least that was needed by any of them and of those
    predicted to need least.
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
    """Return the largest count, such as a batch size, whose ``needed_bytes`` are at most
    ``budget_bytes``; 0 if 1 is too much.

    Both functions must grow with the count. ``needed_bytes`` is asked where the prediction says,
    which each answer scales anew, then half way between: a handful of times, ending with a proof on
    both sides. Counts above ``most`` are not tried.
    """
    check_budget(budget_bytes)

    def guess(below: int, scale: float) -> int:
        return (
            bisect_smallest(below, lambda count: predicted_bytes(count) * scale > budget_bytes) - 1
        )

    fits, too_many, scale, asked = 0, most + 1, 1.0, 0
    while too_many - fits > 1:
        half_way = (fits + too_many) // 2 if too_many <= most else 2 * fits
        trial = guess(too_many, scale) if asked < 4 else half_way
        trial = min(max(trial, fits + 1), too_many - 1)
        needed, asked = needed_bytes(trial), asked + 1
        scale = needed / max(1, predicted_bytes(trial))
        if needed <= budget_bytes:
            fits = trial
        else:
            too_many = trial
    return fits
