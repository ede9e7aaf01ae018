"""Stored states and kept activations mixed within a budget, for a chain of equal steps.

A segment either keeps its activations, or stores its input and is split. With m bytes, Q(n, m) of n
steps are replayed:

    Q(n, m) = 0 if n activations fit, else
              the least of y + Q(y, m) + Q(n - y, m - state) over 0 < y < n.

The paper also allows to keep one step and split the rest. For equal steps that gained nothing in
any computed table, and is left out. The budget here includes the activations of the running step,
which the paper leaves out.

If no step needs more than one replay, the answer is closed: the last section takes all bytes that
earlier states leave. It equals the table's wherever both were computed. Otherwise the table is
filled in units of at least 1/32 of the larger size, rounding up. The budget is then below about
sqrt(2 n state activation), which bounds its rows.

Optimal among persistent plans (see ``segments``) up to 512 steps if the unit divides both sizes.
For longer chains the split is searched near that of the chain one step shorter, which was within
0.1 % of the optimal time wherever that was computed. Never slower than the binomial schedule in the
same budget. Not done: uneven steps, and restarting from kept activations.

Source: Gruslys et al. 2016, "Memory-Efficient Backpropagation Through Time", arXiv:1606.03401
(BPTT-MSM).
"""

from __future__ import annotations

from functools import partial
from operator import add
from typing import Callable, Iterator, Union

from ...errors import InvalidArgumentError
from ..actions import Action, Plan
from ..budget import BudgetTooSmallError, bisect_smallest, check_budget
from ..chain import Chain
from ..segments import Split, Whole, unfold
from .binomial_schedule import binomial_actions, binomial_replayed_steps

# Up to this many steps all splits are tried, then only those within the window around the last one
# found. So 2048 steps take 1 s.
_EXHAUSTIVE_STEPS = 512
_WINDOW = 32
_LARGEST_UNITS = 32

Decision = Union[Whole, Split[int]]


def mixed_plan(chain: Chain, *, budget_bytes: int) -> Plan:
    """Return the plan with the fewest replayed steps and a peak of at most ``budget_bytes``.

    For equal steps. A larger budget never replays more, and one that buys nothing is not used.
    Source: Gruslys et al. 2016, arXiv:1606.03401.

    Raises:
        InvalidArgumentError: The steps of the chain are unequal.
        BudgetTooSmallError: No plan fits; holds the smallest budget that one fits.

    Examples:
        >>> chain = kr.planning.Chain.homogeneous(100, state_bytes=1, activation_bytes=5)
        >>> kr.planning.simulate(chain, kr.planning.mixed_plan(chain, budget_bytes=100))
        Outcome(peak_bytes=100, forward_steps=181, replayed_steps=81, seconds=381)
    """
    return Plan(len(chain), tuple(mixed_actions(chain, budget_bytes=budget_bytes)), planner="mixed")


def mixed_actions(chain: Chain, *, budget_bytes: int) -> Iterator[Action]:
    """Yield the actions of ``mixed_plan`` one by one."""
    check_budget(budget_bytes)
    if not chain.is_homogeneous:
        raise InvalidArgumentError(
            "the steps of the chain differ in size, and mixed_plan needs equal steps: use "
            "optimal_plan"
        )
    steps, state, activation = len(chain), chain.state_bytes[0], chain.activation_bytes[0]
    # The peak is always reached while the last step of a kept row runs, so the working bytes come
    # off as a constant.
    constant = chain.fixed_bytes + chain.working_bytes[0]
    smallest = constant + (
        activation if steps == 1 else min(steps * activation, state + activation)
    )
    if budget_bytes < smallest:
        raise BudgetTooSmallError(
            "any plan", budget_bytes=budget_bytes, smallest_budget_bytes=smallest
        )
    budget = budget_bytes - constant
    if steps * activation <= budget:
        return unfold(steps, 0, _decide_by((steps,)))
    sections = partial(_single_replay_lengths, steps, state=state, activation=activation)
    lengths = sections(budget)
    if lengths:
        # A larger budget would only make the first section longer.
        lean = bisect_smallest(budget, lambda room: sections(room)[-1:] >= lengths[-1:])
        return unfold(steps, 0, _decide_by(sections(lean)))
    table = _Table(steps, state=state, activation=activation, budget=budget)
    # The binomial schedule keeps one step of activations; the table rounds sizes up and may lose.
    slots = (budget - activation) // state
    if table.replayed_steps is None or (
        slots and binomial_replayed_steps(steps, slots=slots) < table.replayed_steps
    ):
        return binomial_actions(steps, slots=slots)
    return unfold(steps, table.rows, table.decide)


def _single_replay_lengths(
    steps: int, budget: int, *, state: int, activation: int
) -> tuple[int, ...]:
    """Return section lengths, first to last, that fit with one replay of all but the last; or ().

    The first section has the whole budget, the last one the rest after the stored states. The last
    is not replayed, so it takes all it can, and the excess length comes off the first.
    """
    lengths: list[int] = []
    missing = steps
    while missing > 0 and activation <= budget:
        lengths.append(budget // activation)
        missing -= lengths[-1]
        budget -= state
    return () if missing > 0 else (lengths[0] + missing, *lengths[1:])


def _decide_by(lengths: tuple[int, ...]) -> Callable[[int, int, int], Decision]:
    def decide(begin: int, end: int, section: int) -> Decision:
        if end - begin == lengths[section]:
            return Whole()
        return Split(lengths[section], before=section, after=section + 1)

    return decide


class _Table:
    """Q(length, units) for all lengths and units of memory, with the choices that reach it.

    The key of a segment is its units. A choice is the length before the split, or 0 for "as with a
    unit less".
    """

    def __init__(self, steps: int, *, state: int, activation: int, budget: int) -> None:
        unit = _unit_bytes(state, activation)
        self.state, self.activation = -(-state // unit), -(-activation // unit)
        self.rows = budget // unit
        self.choices: list[list[int]] = []
        nothing_fits: list[float] = [float("inf")] * (steps + 1)
        costs: list[list[float]] = []
        reach = steps if steps <= _EXHAUSTIVE_STEPS else _WINDOW
        for units in range(self.rows + 1):
            less = costs[-1] if costs else nothing_fits
            after = costs[units - self.state] if units >= self.state else nothing_fits
            costs.append(self._fill(steps, units // self.activation, reach, less, after[::-1]))
        cost = costs[-1][steps]
        self.replayed_steps = None if cost == float("inf") else int(cost)

    def _fill(
        self, steps: int, whole: int, reach: int, less: list[float], after_reversed: list[float]
    ) -> list[float]:
        cost = [0.0] * min(whole + 1, steps + 1)
        before = [y + cost_y for y, cost_y in enumerate(cost)]
        choice = [0] * len(cost)
        split = 1
        for length in range(len(cost), steps + 1):
            low, high = max(1, split - reach), min(length, split + reach + 2)
            shift = steps - length
            sums = list(map(add, before[low:high], after_reversed[shift + low : shift + high]))
            best = min(sums) if sums else float("inf")
            if best < float("inf"):
                split = low + sums.index(best)
            # One more unit of memory must never cost replays, which a search in a window does not
            # ensure.
            as_before = less[length] <= best
            cost.append(less[length] if as_before else best)
            before.append(length + cost[-1])
            choice.append(0 if as_before else split)
        self.choices.append(choice)
        return cost

    def decide(self, begin: int, end: int, units: int) -> Decision:
        length = end - begin
        if length * self.activation <= units:
            return Whole()
        while not self.choices[units][length]:
            units -= 1
        return Split(self.choices[units][length], before=units, after=units - self.state)


def _unit_bytes(state: int, activation: int) -> int:
    """Return the unit, a fraction of the larger size, that loses least by rounding up.

    Near ties the coarser unit wins, for a smaller table.
    """
    larger = max(state, activation)

    def charge(unit: int) -> float:
        rounding = sum(-(-size // unit) * unit / size - 1 for size in (state, activation))
        return rounding + 0.002 * larger / unit

    return min((-(-larger // parts) for parts in range(1, _LARGEST_UNITS + 1)), key=charge)
