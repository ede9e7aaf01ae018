"""Search for the largest batch or length that fits, with few compilations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Largest:
    """What was found by compiling.

    Attributes:
        fits: The largest size that fits; None where not even the smallest does.
        fits_bytes: What it needs.
        exceeds: The smallest size that does not fit; None where none was found.
        exceeds_bytes: What that one needs.
    """

    fits: int | None
    fits_bytes: int
    exceeds: int | None
    exceeds_bytes: int


def largest_that_fits(
    needed_bytes: Callable[[int], int],
    *,
    known: dict[int, int],
    budget_bytes: int,
    step: int = 1,
    tries: int = 5,
) -> Largest:
    """Return the largest multiple of ``step`` whose ``needed_bytes`` are in the budget.

    Memory grows with the size, mostly in proportion: so the next size is on the line through two
    known ones. After ``tries`` sizes the best one so far is returned.

    Args:
        needed_bytes: Compiles a size.
        known: Sizes with what they need, at least one above 0; what is found is added. Size 0 may
            be among them, with the bytes that every size needs: then fewer sizes are compiled.
        budget_bytes: The memory that there is.
        step: What sizes are multiples of, and where they begin.
        tries: How many sizes to compile at most.
    """
    for _ in range(tries):
        low, high = _bounds(known, budget_bytes)
        if high is not None and high - (low or 0) <= step:
            break
        size = _next(known, budget_bytes) // step * step
        if size <= (low or 0):
            size = (low or 0) + step
        elif high is not None and size >= high:
            # The line is too steep or too flat here.
            size = ((low or 0) + high) // (2 * step) * step
        known[size] = needed_bytes(size)
    low, high = _bounds(known, budget_bytes)
    return Largest(low or None, known[low] if low else 0, high, known[high] if high else 0)


def _bounds(known: dict[int, int], budget_bytes: int) -> tuple[int | None, int | None]:
    fitting = [size for size, needed in known.items() if needed <= budget_bytes]
    others = known.keys() - {0, *fitting}
    return max(fitting, default=None), min(others, default=None)


def _next(known: dict[int, int], budget_bytes: int) -> int:
    """Return where the line through the two known sizes nearest the budget reaches it."""
    first, *others = sorted(known, key=lambda size: abs(known[size] - budget_bytes))
    if not others:
        # A second point of the line.
        return first * 2 if known[first] <= budget_bytes else first // 2
    slope = (known[first] - known[others[0]]) / (first - others[0])
    return int(first + (budget_bytes - known[first]) / slope) if slope > 0 else first * 2
