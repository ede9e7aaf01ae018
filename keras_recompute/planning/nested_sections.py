"""Equal sections nested in several levels, so that the sections of a level can share one program.

With p_1, ..., p_L sections per level that divide the n steps, sum(p_i - 1) states and
n / (p_1 ... p_L) steps of activations are alive at the peak. Each level runs all but the last of
its sections once more, so sum(n - n / p_i) steps are replayed. The binomial schedule replays fewer
steps with as many states, but no two of its sections need be alike.

Source: Chen et al. 2016, arXiv:1604.06174, the recursive algorithm with equal levels.
"""

from __future__ import annotations

from .chain import check_count


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
