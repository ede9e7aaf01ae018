"""Equal sections nested in several levels, so that the sections of a level can share one program.

With p_1, ..., p_L sections per level that divide the n steps, sum(p_i - 1) states and
n / (p_1 ... p_L) steps of activations are alive at the peak. Each level runs all but the last of
its sections once more, so sum(n - n / p_i) steps are replayed. The binomial schedule replays fewer
steps with as many states, but no two of its sections need be alike.

Source: Chen et al. 2016, arXiv:1604.06174, the recursive algorithm with equal levels.
"""

from __future__ import annotations

from typing import Iterator, Sequence, Tuple

from ..errors import InvalidArgumentError
from .actions import Action, Plan
from .chain import check_count
from .segments import KeepFirst, Split, Whole, unfold
from .uniform_sections import section_lengths

# The key of a segment: its level and the lengths of its sections there.
_Sections = Tuple[int, Tuple[int, ...]]


def equal_groups(count: int, levels: int) -> tuple[int, ...]:
    """Return the trip counts of at most ``levels`` nested loops over ``count`` equal sections.

    The factors of ``count`` are as equal as possible and come largest first, which is outermost: 32
    in two levels is ``(8, 4)``. A prime number is not divided: it stays ``(count,)``.
    """
    check_count("count", count, at_least=1)
    check_count("levels", levels, at_least=1)
    if levels == 1 or count == 1:
        return (count,)
    root = round(count ** (1 / levels))
    # The largest divisor up to the root: the other loops then have no fewer trips.
    inner = max(divisor for divisor in range(1, max(root, 1) + 1) if count % divisor == 0)
    if inner == 1:
        return (count,)
    return tuple(sorted((*equal_groups(count // inner, levels - 1), inner), reverse=True))


def multilevel_actions(steps: int, *, sections_per_level: Sequence[int]) -> Iterator[Action]:
    """Yield the actions of ``multilevel_plan`` one by one."""
    check_count("steps", steps, at_least=1)
    levels = tuple(sections_per_level)
    product = 1
    for level, sections in enumerate(levels):
        check_count(f"sections_per_level[{level}]", sections, at_least=1)
        product *= sections
    if product > steps:
        raise InvalidArgumentError(
            f"sections_per_level is {levels}, which makes {product} sections of {steps} steps, "
            "and each needs a step: give fewer"
        )

    def decide(
        begin: int, end: int, key: _Sections
    ) -> Whole | KeepFirst[_Sections] | Split[_Sections]:
        level, lengths = key
        while len(lengths) == 1:
            if level == len(levels):
                return Whole()
            lengths = section_lengths(end - begin, levels[level])
            level += 1
        return Split(lengths[0], before=(level, lengths[:1]), after=(level, lengths[1:]))

    start: _Sections = (0, (steps,))
    return unfold(steps, start, decide)


def multilevel_plan(steps: int, *, sections_per_level: Sequence[int]) -> Plan:
    """Return the plan that cuts ``steps`` into sections, and each of these into sections.

    ``sections_per_level[0]`` sections are cut into ``sections_per_level[1]`` each, and so on.
    Lengths within one section differ by at most one. Source: Chen et al. 2016, arXiv:1604.06174.

    Raises:
        InvalidArgumentError: Fewer than one section at a level, or more sections in all than steps.

    Examples:
        >>> chain = kr.planning.Chain.homogeneous(100, state_bytes=1, activation_bytes=5)
        >>> kr.planning.simulate(chain, kr.planning.multilevel_plan(100, sections_per_level=[5, 4]))
        Outcome(peak_bytes=32, forward_steps=255, replayed_steps=155, seconds=455)
    """
    return Plan(
        steps,
        tuple(multilevel_actions(steps, sections_per_level=sections_per_level)),
        planner="multilevel",
    )
