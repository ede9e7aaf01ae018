"""Finds repeated calls in a section, such as the blocks of a deep model, so that a loop runs them.

Such a loop recomputes nothing more than the calls without it. What the gradient reads is stored for
each iteration.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .call_graph import Call, Graph
from .cut_points import bytes_crossing
from .fingerprint import Fingerprints, Level
from .isomorphic_layers import structural_fingerprint
from .section_loops import SectionLoop, find_loops
from .sections import Section, sections_of_groups

_LONGEST = 256  # calls in one block


def inner_loops(
    graph: Graph, fingerprints: Fingerprints | None = None
) -> tuple[Section | SectionLoop, ...]:
    """Return the calls of ``graph`` with isomorphic blocks that repeat themselves as loops.

    Empty where there are none. ``fingerprints`` may have known ones.
    """
    known = Fingerprints() if fingerprints is None else fingerprints
    blocks = sections_of_groups(graph, _groups(graph.calls, known))
    level = Level.SAME_STRUCTURE
    steps = tuple(find_loops(blocks, graph, level=level, fingerprints=known))
    return steps if any(isinstance(step, SectionLoop) for step in steps) else ()


def _groups(calls: Sequence[Call], known: Fingerprints) -> list[list[Call]]:
    """Return ``calls`` in groups, in order: iterations of a repetition, and the calls around it."""
    found = _longest_repetition(calls, known)
    if found is None:
        return [list(calls)] if calls else []
    end = found.start + found.count * found.period
    starts = range(found.start, end, found.period)
    turns = [list(calls[start : start + found.period]) for start in starts]
    return [*_groups(calls[: found.start], known), *turns, *_groups(calls[end:], known)]


@dataclass(frozen=True)
class _Repetition:
    start: int
    period: int
    count: int


def _longest_repetition(calls: Sequence[Call], known: Fingerprints) -> _Repetition | None:
    """Return the repetition that covers the most calls.

    Of several such it has the shortest period, and is cut where the fewest bytes cross.
    """
    kinds = _numbered_kinds(calls, known)
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


def _numbered_kinds(calls: Sequence[Call], fingerprints: Fingerprints) -> list[int]:
    """Return a number for each call, equal for isomorphic operations."""
    numbers: dict[Hashable, int] = {}
    found = []
    for call in calls:
        key = structural_fingerprint(call.operation, fingerprints).key
        found.append(numbers.setdefault(key, len(numbers)))
    return found
