"""The Pareto frontier of peak bytes and replay seconds, for all budgets of an uneven chain at once.

The recurrence of ``mixed_schedule``: each segment keeps its first step, or stores its input and
splits at any later one. Rotor rounds sizes to a grid that depends on the budget. Here the whole
frontier of a segment is computed with exact bytes. So one table answers every budget, a larger
budget can only buy more, and the smallest possible budget is the first point.

Optimal among persistent plans (see ``segments``) up to 16 steps while no frontier has more than 256
points. Above, three limits keep 500 steps within seconds. A longer segment is split at no more than
15 positions, the cheapest states of as many stretches. Its first activations are kept up to such a
position. Its frontier is thinned to some tens of points, even in the logarithm of bytes. The limits
cost speed of the plan, never correctness.

Source: Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains", arXiv:1911.13214.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Iterator, NamedTuple, Sequence

from ..actions import Action
from ..chain import Chain
from ..segments import KeepFirst, Split, Whole, unfold

_POSITIONS = 15
# Most points of a frontier for chains up to _SHORT steps, and for longer ones: 500 steps then take
# some seconds.
_SHORT, _POINTS_SHORT, _POINTS_LONG = 40, 256, 64


class ParetoPoint(NamedTuple):
    """A plan of a segment that replays ``replay_seconds`` within ``peak_bytes``.

    It keeps the first ``steps`` steps if ``before`` is -1, else it splits after ``steps`` steps.
    ``before`` and ``after`` are the indices of the points of the two parts.
    """

    peak_bytes: int
    replay_seconds: float
    steps: int
    before: int
    after: int


class ParetoFrontier:
    """The frontiers of a chain and of its segments, with about ``most_points`` points each."""

    def __init__(self, chain: Chain, *, most_points: int | None = None) -> None:
        self._chain = chain
        self._kept_bytes = (0, *accumulate(chain.activation_bytes))
        self._seconds = (0, *accumulate(chain.forward_seconds))
        self._levels = _levels(chain.state_bytes)
        self._most = most_points or (_POINTS_SHORT if len(chain) <= _SHORT else _POINTS_LONG)
        self._segments: dict[tuple[int, int], list[ParetoPoint]] = {}
        self.points = tuple(self._points(0, len(chain)))

    def actions(self, point: int) -> Iterator[Action]:
        """Yield the actions of the plan of ``self.points[point]``."""

        def decide(begin: int, end: int, index: int) -> Whole | KeepFirst[int] | Split[int]:
            chosen = self._segments[begin, end][index]
            if chosen.before >= 0:
                return Split(chosen.steps, before=chosen.before, after=chosen.after)
            return (
                Whole()
                if chosen.steps == end - begin
                else KeepFirst(chosen.steps, rest=chosen.after)
            )

        return unfold(len(self._chain), point, decide)

    def _points(self, begin: int, end: int) -> list[ParetoPoint]:
        # Segments overlap between splits, so each is computed once.
        if (begin, end) not in self._segments:
            positions = self._positions(begin, end)
            found = self._keep_first(begin, positions[0] if positions else end, end)
            for middle in positions:
                found += self._split(begin, middle, end)
            self._segments[begin, end] = _thin(_non_dominated(found), self._most)
        return self._segments[begin, end]

    def _positions(self, begin: int, end: int) -> list[int]:
        for level in self._levels:
            low, high = bisect_right(level, begin), bisect_left(level, end)
            if high - low <= _POSITIONS:
                return level[low:high]
        return []

    def _keep_first(self, begin: int, middle: int, end: int) -> list[ParetoPoint]:
        kept, working = self._kept_bytes, self._chain.working_bytes
        held = kept[middle] - kept[begin]
        least = max(kept[step + 1] - kept[begin] + working[step] for step in range(begin, middle))
        if middle == end:
            return [ParetoPoint(least, 0, end - begin, -1, -1)]
        return [
            ParetoPoint(
                max(least, held + point.peak_bytes), point.replay_seconds, middle - begin, -1, index
            )
            for index, point in enumerate(self._points(middle, end))
        ]

    def _split(self, begin: int, middle: int, end: int) -> list[ParetoPoint]:
        state = self._chain.state_bytes[begin]
        advance = self._seconds[middle] - self._seconds[begin]
        before, after = self._points(begin, middle), self._points(middle, end)
        peak = max(
            before[0].peak_bytes,
            state + after[0].peak_bytes,
            state + max(self._chain.working_bytes[begin:middle]),
        )
        # Walk both frontiers at once, from one peak at which either gains a point to the next.
        highest = float("inf")
        before_peaks = [*(point.peak_bytes for point in before), highest]
        after_peaks = [*(state + point.peak_bytes for point in after), highest]
        i, j = bisect_right(before_peaks, peak) - 1, bisect_right(after_peaks, peak) - 1
        found = []
        while True:
            seconds = advance + before[i].replay_seconds + after[j].replay_seconds
            found.append(ParetoPoint(peak, seconds, middle - begin, i, j))
            next_before, next_after = before_peaks[i + 1], after_peaks[j + 1]
            if next_before == next_after == highest:
                return found
            peak = int(min(next_before, next_after))
            i += next_before == peak
            j += next_after == peak


def _non_dominated(points: list[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points that no other beats in both bytes and seconds, lowest peak first."""
    result: list[ParetoPoint] = []
    for point in sorted(points):
        if not result or point.replay_seconds < result[-1].replay_seconds:
            result.append(point)
    return result


def _thin(points: list[ParetoPoint], most: int) -> list[ParetoPoint]:
    """Return about ``most`` points, evenly in the logarithm of bytes, with both ends."""
    if len(points) <= most:
        return points
    factor = (points[-1].peak_bytes / max(1, points[0].peak_bytes)) ** (1 / most)
    result = points[:1]
    for point in points[1:-1]:
        if point.peak_bytes >= result[-1].peak_bytes * factor:
            result.append(point)
    return [*result, points[-1]]


def _levels(state_bytes: Sequence[int]) -> list[list[int]]:
    """Return ever shorter lists of positions; of two neighbours the cheaper state goes on."""
    levels = [list(range(1, len(state_bytes)))]
    while len(levels[-1]) > _POSITIONS:
        last = levels[-1]
        levels.append(
            [
                min(last[i : i + 2], key=lambda step: state_bytes[step])
                for i in range(0, len(last), 2)
            ]
        )
    return levels
