"""Cuts a list of calls where it repeats itself, as the blocks of a deep model do.

The caller says by a function which calls are of one kind, and answers for it that such calls do the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from .call_graph import Call
from .cut_points import bytes_crossing

_LONGEST = 256  # calls in one block

KindOf = Callable[[Call], Hashable]


def repeated_groups(calls: Sequence[Call], kind_of: KindOf) -> list[list[Call]]:
    """Return ``calls`` in groups, in order: iterations of a repetition, and the calls around it.

    Those around it are searched in the same way. ``kind_of`` gives equal values for calls that are
    equal.
    """
    found = _longest_repetition(calls, kind_of)
    if found is None:
        return [list(calls)] if calls else []
    end = found.start + found.count * found.period
    starts = range(found.start, end, found.period)
    turns = [list(calls[start : start + found.period]) for start in starts]
    before = repeated_groups(calls[: found.start], kind_of)
    return [*before, *turns, *repeated_groups(calls[end:], kind_of)]


@dataclass(frozen=True)
class _Repetition:
    start: int
    period: int
    count: int


def _longest_repetition(calls: Sequence[Call], kind_of: KindOf) -> _Repetition | None:
    """Return the repetition that covers the most calls.

    Of several such it has the shortest period, and is cut where the fewest bytes cross.
    """
    kinds = _numbered_kinds(calls, kind_of)
    best: _Repetition | None = None
    for period in range(1, min(len(kinds) // 2, _LONGEST) + 1):
        # Calls that equal the one a period before them, up to here.
        matching = 0
        for n in range(period, len(kinds) + 1):
            if n < len(kinds) and kinds[n] == kinds[n - period]:
                matching += 1
                continue
            count = matching // period + 1
            if count > 1 and (best is None or count * period > best.count * best.period):
                starts = range(n - matching - period, n - count * period + 1)
                best = _Repetition(
                    min(starts, key=lambda s: bytes_crossing((1 << s + period) - 1, calls)),
                    period,
                    count,
                )
            matching = 0
    return best


def _numbered_kinds(calls: Sequence[Call], kind_of: KindOf) -> list[int]:
    """Return a number for each call, equal for calls of one kind."""
    numbers: dict[Hashable, int] = {}
    found = []
    for call in calls:
        found.append(numbers.setdefault(kind_of(call), len(numbers)))
    return found
