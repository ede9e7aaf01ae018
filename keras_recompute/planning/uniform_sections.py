"""Sections of equal length, which a compiler can outline: one checkpoint before each but the first.

Source: Chen et al. 2016, arXiv:1604.06174, the O(sqrt n) algorithm.
"""

from __future__ import annotations

from ..errors import InvalidArgumentError
from .chain import check_count


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
