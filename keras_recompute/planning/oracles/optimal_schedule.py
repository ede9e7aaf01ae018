"""The fastest plan within a budget for any chain, by the best planner for that chain.

* up to 8 steps: ``exhaustive_search`` over every order of actions, optimal without conditions;
* equal steps: ``mixed_schedule``;
* otherwise the better of ``pareto_frontier`` (any number of replays, few positions on long chains)
  and ``single_replay`` (every position, one replay). Optimal among persistent plans up to 16 steps,
  near it above.

Guaranteed: the peak is within the budget, and a larger budget is never slower. Of two equally fast
uneven plans the one with the smaller peak is returned, so that a budget which buys no time changes
nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

from ..actions import Action, Plan
from ..budget import BudgetTooSmallError, check_budget
from ..chain import Chain
from ..simulate import simulate
from ..single_replay import (
    replay_seconds,
    section_actions,
    single_replay_sections,
    smallest_room_bytes,
)
from .exhaustive_search import LONGEST, fastest_actions, leanest_actions
from .mixed_schedule import mixed_actions
from .pareto_frontier import ParetoFrontier


def optimal_plan(chain: Chain, *, budget_bytes: int) -> Plan:
    """Return the fastest plan for ``chain`` with a peak of at most ``budget_bytes``.

    The budget includes the chain's fixed bytes. It takes milliseconds for equal steps at most
    budgets, and at most seconds for 500 unequal ones. Another budget for the same chain is quick.

    Raises:
        BudgetTooSmallError: No plan fits; holds the smallest budget that one fits.

    Examples:
        >>> chain = kr.planning.Chain(
        ...     state_bytes=[0, 8, 4],
        ...     activation_bytes=[20, 40, 10],
        ...     forward_seconds=[1, 2, 1],
        ...     backward_seconds=[2, 4, 2],
        ... )
        >>> kr.planning.simulate(chain, kr.planning.optimal_plan(chain, budget_bytes=60))
        Outcome(peak_bytes=50, forward_steps=4, replayed_steps=1, seconds=13)
    """
    check_budget(budget_bytes)
    if len(chain) <= LONGEST:
        actions = _short(chain, budget_bytes)
    elif chain.is_homogeneous:
        actions = tuple(mixed_actions(chain, budget_bytes=budget_bytes))
    else:
        actions = _uneven(chain, budget_bytes)
    return Plan(len(chain), actions, planner="optimal")


def _short(chain: Chain, budget_bytes: int) -> tuple[Action, ...]:
    room = budget_bytes - chain.fixed_bytes
    points = _frontier(chain).points
    reachable = bisect_right([point.peak_bytes for point in points], room)
    # Slack for rounding: the same seconds may be summed in another order.
    bound = (
        points[reachable - 1].replay_seconds + 1e-9 * chain.plain_seconds
        if reachable
        else float("inf")
    )
    actions = fastest_actions(chain, room_bytes=room, seconds_at_most=bound)
    if actions is None:
        leanest = leanest_actions(chain, room_bytes=points[0].peak_bytes)
        assert leanest is not None  # the first point is such a plan
        smallest = simulate(chain, leanest).peak_bytes
        raise BudgetTooSmallError(
            "any plan", budget_bytes=budget_bytes, smallest_budget_bytes=smallest
        )
    return actions


def _uneven(chain: Chain, budget_bytes: int) -> tuple[Action, ...]:
    room = budget_bytes - chain.fixed_bytes
    table = _frontier(chain)
    point = bisect_right([point.peak_bytes for point in table.points], room) - 1
    sections = single_replay_sections(chain, room_bytes=room)
    if sections is not None:
        seconds = replay_seconds(chain, sections)
        least = smallest_room_bytes(chain, seconds=seconds, room_bytes=room)
        if point < 0 or (seconds, least) < (
            table.points[point].replay_seconds,
            table.points[point].peak_bytes,
        ):
            leanest = single_replay_sections(chain, room_bytes=least)
            assert leanest is not None  # least was found by asking just this
            return tuple(section_actions(len(chain), leanest))
    if point >= 0:
        return tuple(table.actions(point))
    smallest = smallest_room_bytes(
        chain, seconds=float("inf"), room_bytes=table.points[0].peak_bytes
    )
    raise BudgetTooSmallError(
        "any plan found",
        budget_bytes=budget_bytes,
        smallest_budget_bytes=chain.fixed_bytes + smallest,
    )


# Callers try several budgets for one chain, and the frontier answers all of them.
@lru_cache(maxsize=4)
def _frontier(chain: Chain) -> ParetoFrontier:
    return ParetoFrontier(chain)
