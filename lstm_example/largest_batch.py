"""The largest batch that fits a budget, where only compiling gives the exact need."""

from __future__ import annotations

from bisect import bisect_right
from typing import Callable


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

    def guess(below: int, scale: float) -> int:
        def scaled(count: int) -> float:
            return scale * predicted_bytes(count)

        return bisect_right(range(below), float(budget_bytes), key=scaled) - 1

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
