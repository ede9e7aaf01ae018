"""The error of planners whose budget is too small, and a bisection for the smallest budget."""

from __future__ import annotations

from typing import Callable, Sequence

from ..errors import InvalidArgumentError
from ..sizes import format_bytes
from .chain import check_count


class BudgetTooSmallError(InvalidArgumentError):
    """No plan fits the budget; ``smallest_budget_bytes`` is the smallest budget that a plan fits.

    Examples:
        >>> inputs = keras.Input((4,), batch_size=1)
        >>> try:
        ...     kr.plan(keras.Model(inputs, keras.layers.Dense(4)(inputs)), memory_budget=4)
        ... except kr.planning.BudgetTooSmallError as error:
        ...     print(error.budget_bytes)
        4
    """

    def __init__(self, what: str, *, budget_bytes: int, smallest_budget_bytes: int) -> None:
        super().__init__(
            f"a budget of {format_bytes(budget_bytes)} is too small for {what}: the smallest that "
            f"suffices is {format_bytes(smallest_budget_bytes)} ({smallest_budget_bytes} bytes). "
            "Give at least that, or make the batch or the model smaller"
        )
        self.budget_bytes = budget_bytes
        self.smallest_budget_bytes = smallest_budget_bytes


def bisect_smallest(
    enough: int, suffices: Callable[[int], bool], *, guesses: Sequence[int] = ()
) -> int:
    """Return the smallest number up to ``enough`` for which ``suffices``, by bisection.

    ``suffices`` must be monotone, and is not called for ``enough`` itself. ``guesses`` are tried in
    their order before bisection, where they can still be the answer.
    """
    low, high = 0, enough
    while low < high:
        # A guess outside of the remaining range cannot be the answer any more.
        middle = next((guess for guess in guesses if low <= guess < high), (low + high) // 2)
        if suffices(middle):
            high = middle
        else:
            low = middle + 1
    return high


def check_budget(budget_bytes: object) -> None:
    """Raise InvalidArgumentError unless ``budget_bytes`` is a whole number, zero or more."""
    check_count("budget_bytes", budget_bytes, at_least=0)
