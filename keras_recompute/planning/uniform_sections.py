"""Sections of equal length, the plan of the published example; a compiler can outline them.

K checkpoints cut the chain into K + 1 sections. The last section is kept as it first runs. So K
states and one section of activations are alive at the peak, and all but the last section run twice.
One of the K states is the input of the chain, since the last section needs none stored.

Unequal sections and more replays can do better: see ``oracles``. Not done: replaying the last
section too, for engines that treat all sections alike.

Source: Chen et al. 2016, arXiv:1604.06174, the O(sqrt n) algorithm.
"""

from __future__ import annotations

from typing import Iterator

from ..errors import InvalidArgumentError
from .actions import Action, Plan
from .budget import BudgetTooSmallError, check_budget
from .chain import Chain, check_count
from .segments import KeepFirst, Split, Whole, unfold
from .simulate import simulate


def section_lengths(steps: int, sections: int) -> tuple[int, ...]:
    """Return the lengths in steps of ``sections`` sections that differ by at most one.

    Section i begins at step ``i * steps // sections``.

    Raises:
        InvalidArgumentError: Fewer than one section, or more sections than steps.

    Examples:
        >>> kr.planning.section_lengths(10, 4)
        (2, 3, 2, 3)
    """
    check_count("steps", steps, at_least=1)
    check_count("sections", sections, at_least=1)
    if sections > steps:
        raise InvalidArgumentError(
            f"{sections} sections do not fit in {steps} steps, because each needs a step: give "
            "fewer"
        )
    return tuple((i + 1) * steps // sections - i * steps // sections for i in range(sections))


def uniform_actions(steps: int, *, checkpoints: int) -> Iterator[Action]:
    """Yield the actions of ``uniform_plan`` one by one."""
    check_count("checkpoints", checkpoints, at_least=0)
    lengths = section_lengths(steps, checkpoints + 1)

    def decide(begin: int, end: int, section: int) -> Whole | KeepFirst[int] | Split[int]:
        if end - begin == lengths[section]:
            return Whole()
        return Split(lengths[section], before=section, after=section + 1)

    return unfold(steps, 0, decide)


def uniform_plan(steps: int, *, checkpoints: int) -> Plan:
    """Return the plan that stores ``checkpoints`` states and replays all sections but the last.

    Raises:
        InvalidArgumentError: Fewer than zero checkpoints, or more than steps - 1.

    Examples:
        >>> chain = kr.planning.Chain.homogeneous(100, state_bytes=1, activation_bytes=5)
        >>> kr.planning.simulate(chain, kr.planning.uniform_plan(100, checkpoints=4))
        Outcome(peak_bytes=104, forward_steps=180, replayed_steps=80, seconds=380)
    """
    return Plan(steps, tuple(uniform_actions(steps, checkpoints=checkpoints)), planner="uniform")


def uniform_plan_within(chain: Chain, *, budget_bytes: int) -> Plan:
    """Return the uniform plan with the fewest checkpoints whose peak is within ``budget_bytes``.

    Fewer checkpoints replay fewer steps.

    Raises:
        BudgetTooSmallError: No uniform plan fits; holds the smallest budget that one fits.

    Examples:
        >>> chain = kr.planning.Chain.homogeneous(100, state_bytes=1, activation_bytes=5)
        >>> plan = kr.planning.uniform_plan_within(chain, budget_bytes=130)
        >>> kr.planning.simulate(chain, plan).peak_bytes
        128
    """
    check_budget(budget_bytes)
    smallest = None
    # Fewest first, since each checkpoint adds replays.
    for checkpoints in range(len(chain)):
        plan = uniform_plan(len(chain), checkpoints=checkpoints)
        peak_bytes = simulate(chain, plan).peak_bytes
        if peak_bytes <= budget_bytes:
            return plan
        smallest = peak_bytes if smallest is None else min(smallest, peak_bytes)
    assert smallest is not None  # a chain has at least one step
    raise BudgetTooSmallError(
        "a uniform plan", budget_bytes=budget_bytes, smallest_budget_bytes=smallest
    )
