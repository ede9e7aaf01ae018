"""The binomial schedule: the fewest replays of equal steps with a given number of stored states.

One of the ``slots`` holds the input of the chain. With s slots and at most r replays per step the
longest chain has C(s + r, s) steps. A chain of n steps takes r*n - C(s + r, r - 1) replays, where r
is the smallest number whose longest chain reaches n. One step of activations is kept at a time;
with memory for more, ``mixed_schedule`` is faster. Optimal for equal steps only.

Source: Griewank & Walther 2000, "Algorithm 799: Revolve", ACM TOMS 26(1), pp. 19-45, equation (2)
and its solution.
"""

from __future__ import annotations

from math import comb
from typing import Iterator

from ...errors import InvalidArgumentError
from ..actions import Action, Plan
from ..chain import check_count
from ..segments import KeepFirst, Split, Whole, unfold


def longest_chain(*, slots: int, replays_per_step: int) -> int:
    """Return the most steps that ``slots`` stored states serve within a number of replays per step.

    It is C(slots + replays_per_step, slots).

    Raises:
        InvalidArgumentError: A number is negative.

    Examples:
        >>> kr.planning.longest_chain(slots=3, replays_per_step=2)
        10
    """
    check_count("slots", slots, at_least=0)
    check_count("replays_per_step", replays_per_step, at_least=0)
    return _choose(slots + replays_per_step, slots)


def binomial_replays_per_step(steps: int, *, slots: int) -> int:
    """Return r, the most replays of any step: the smallest r with C(slots + r, slots) >= steps.

    Raises InvalidArgumentError for fewer than one step, and for no slot with more than one step.
    """
    _check(steps, slots)
    replays, reach = 0, 1
    while reach < steps:
        replays += 1
        # C(slots + r, slots) from C(slots + r - 1, slots), without large factorials.
        reach = reach * (slots + replays) // replays
    return replays


def binomial_replayed_steps(steps: int, *, slots: int) -> int:
    """Return how many steps ``binomial_plan`` replays, the fewest possible for equal steps.

    It is r*steps - C(slots + r, r - 1).

    Raises:
        InvalidArgumentError: As ``binomial_plan``.

    Examples:
        >>> kr.planning.binomial_replayed_steps(10, slots=3)  # r = 2: 20 - C(5, 1)
        15
    """
    replays = binomial_replays_per_step(steps, slots=slots)
    return replays * steps - _choose(slots + replays, replays - 1)


def binomial_actions(steps: int, *, slots: int) -> Iterator[Action]:
    """Yield the actions of ``binomial_plan`` one by one."""
    _check(steps, slots)

    def decide(begin: int, end: int, slots: int) -> Whole | KeepFirst[int] | Split[int]:
        if end - begin == 1:
            return Whole()
        return Split(_steps_before(end - begin, slots), before=slots, after=slots - 1)

    return unfold(steps, slots, decide)


def binomial_plan(steps: int, *, slots: int) -> Plan:
    """Return the plan that replays the fewest steps with ``slots`` stored states.

    The input of the chain takes one slot. Source: Griewank & Walther 2000, Algorithm 799 (Revolve).

    Raises:
        InvalidArgumentError: Fewer than one step, or no slot with more than one step.

    Examples:
        >>> chain = kr.planning.Chain.homogeneous(10, state_bytes=1, activation_bytes=5)
        >>> kr.planning.simulate(chain, kr.planning.binomial_plan(10, slots=3))
        Outcome(peak_bytes=8, forward_steps=25, replayed_steps=15, seconds=45)
    """
    return Plan(steps, tuple(binomial_actions(steps, slots=slots)), planner="binomial")


def _steps_before(steps: int, slots: int) -> int:
    """Return where to store the next state: the last position with which both parts are optimal."""
    replays = binomial_replays_per_step(steps, slots=slots)
    longest_before = _choose(slots + replays - 1, slots)
    shortest_after = _choose(slots + replays - 2, slots - 1)
    shortest_before = _choose(slots + replays - 2, slots)
    return max(shortest_before, min(longest_before, steps - shortest_after))


def _check(steps: int, slots: int) -> None:
    check_count("steps", steps, at_least=1)
    check_count("slots", slots, at_least=0)
    if not slots and steps > 1:
        raise InvalidArgumentError(
            f"slots is 0 for {steps} steps: replay starts from a stored state, so give at least "
            "one slot"
        )


def _choose(n: int, k: int) -> int:
    return 0 if k < 0 else comb(n, k)
