"""All budgets at once, for uneven steps: what each further byte buys, as a staircase of (peak bytes, replay seconds).

The recurrence of ``mixed``, in the spirit of rotor (Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains",
arXiv:1911.13214): for every segment, keep its first step, or store its input and split it at any later one. Where
rotor rounds all sizes to a grid that depends on the budget, a segment's whole staircase is computed here, with exact bytes. So
one table answers every budget, a larger one can only buy more, and the smallest possible one is its first stair.

Optimal among persistent plans (see ``segments``) up to 16 steps while no staircase has more than 256 stairs. Above, three
limits keep 500 steps within seconds: a longer segment is split, and its first activations are kept, at no more than 15
positions, the cheapest states of as many stretches; and its staircase is thinned to some tens of stairs, even in the logarithm
of bytes. What is left out costs speed, never correctness.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Iterator, NamedTuple, Sequence

from ..actions import Action
from ..chain import Chain
from ..segments import KeepFirst, Split, Whole, unfold

_POSITIONS = 15
# Staircases of chains up to _SHORT steps have up to 256 stairs; of longer ones 64, which is 500 steps in some seconds.
_SHORT, _STAIRS_SHORT, _STAIRS_LONG = 40, 256, 64


class Stair(NamedTuple):
    """With ``peak_bytes``, a segment takes ``replay_seconds`` beyond one run of each of its steps.

    Reached by keeping the first ``steps`` steps where ``before`` is -1, else by a split after ``steps`` steps. ``before`` and
    ``after`` say which stairs of the two parts to take.
    """

    peak_bytes: int
    replay_seconds: float
    steps: int
    before: int
    after: int


class Staircase:
    """The staircase of a chain and of every segment that it is made from, each with about ``most_stairs`` stairs at most."""

    def __init__(self, chain: Chain, *, most_stairs: int | None = None) -> None:
        self._chain = chain
        self._kept_bytes = (0, *accumulate(chain.activation_bytes))
        self._seconds = (0, *accumulate(chain.forward_seconds))
        self._levels = _levels(chain.state_bytes)
        self._most = most_stairs or (_STAIRS_SHORT if len(chain) <= _SHORT else _STAIRS_LONG)
        self._segments: dict[tuple[int, int], list[Stair]] = {}
        self.stairs = tuple(self._stairs(0, len(chain)))

    def actions(self, stair: int) -> Iterator[Action]:
        """Yield the actions of the plan that ``self.stairs[stair]`` stands for."""

        def decide(begin: int, end: int, index: int) -> Whole | KeepFirst[int] | Split[int]:
            chosen = self._segments[begin, end][index]
            if chosen.before >= 0:
                return Split(chosen.steps, before=chosen.before, after=chosen.after)
            return Whole() if chosen.steps == end - begin else KeepFirst(chosen.steps, rest=chosen.after)

        return unfold(len(self._chain), stair, decide)

    def _stairs(self, begin: int, end: int) -> list[Stair]:
        if (begin, end) not in self._segments:
            positions = self._positions(begin, end)
            found = self._keep_first(begin, positions[0] if positions else end, end)
            for middle in positions:
                found += self._split(begin, middle, end)
            self._segments[begin, end] = _thin(_improving(found), self._most)
        return self._segments[begin, end]

    def _positions(self, begin: int, end: int) -> list[int]:
        for level in self._levels:
            low, high = bisect_right(level, begin), bisect_left(level, end)
            if high - low <= _POSITIONS:
                return level[low:high]
        return []

    def _keep_first(self, begin: int, middle: int, end: int) -> list[Stair]:
        kept, working = self._kept_bytes, self._chain.working_bytes
        held = kept[middle] - kept[begin]
        least = max(kept[step + 1] - kept[begin] + working[step] for step in range(begin, middle))
        if middle == end:
            return [Stair(least, 0, end - begin, -1, -1)]
        return [
            Stair(max(least, held + stair.peak_bytes), stair.replay_seconds, middle - begin, -1, index)
            for index, stair in enumerate(self._stairs(middle, end))
        ]

    def _split(self, begin: int, middle: int, end: int) -> list[Stair]:
        state, advance = self._chain.state_bytes[begin], self._seconds[middle] - self._seconds[begin]
        before, after = self._stairs(begin, middle), self._stairs(middle, end)
        peak = max(
            before[0].peak_bytes,
            state + after[0].peak_bytes,
            state + max(self._chain.working_bytes[begin:middle]),
        )
        # Climb both staircases at once, from one height at which either gains a stair to the next.
        highest = float("inf")
        before_peaks = [*(stair.peak_bytes for stair in before), highest]
        after_peaks = [*(state + stair.peak_bytes for stair in after), highest]
        i, j = bisect_right(before_peaks, peak) - 1, bisect_right(after_peaks, peak) - 1
        found = []
        while True:
            seconds = advance + before[i].replay_seconds + after[j].replay_seconds
            found.append(Stair(peak, seconds, middle - begin, i, j))
            next_before, next_after = before_peaks[i + 1], after_peaks[j + 1]
            if next_before == next_after == highest:
                return found
            peak = int(min(next_before, next_after))
            i += next_before == peak
            j += next_after == peak


def _improving(stairs: list[Stair]) -> list[Stair]:
    """Return the stairs that no other beats in both bytes and seconds, lowest peak first."""
    result: list[Stair] = []
    for stair in sorted(stairs):
        if not result or stair.replay_seconds < result[-1].replay_seconds:
            result.append(stair)
    return result


def _thin(stairs: list[Stair], most: int) -> list[Stair]:
    """Return the first, the last and about ``most`` stairs between, their peaks growing by about the same factor."""
    if len(stairs) <= most:
        return stairs
    factor = (stairs[-1].peak_bytes / max(1, stairs[0].peak_bytes)) ** (1 / most)
    result = stairs[:1]
    for stair in stairs[1:-1]:
        if stair.peak_bytes >= result[-1].peak_bytes * factor:
            result.append(stair)
    return [*result, stairs[-1]]


def _levels(state_bytes: Sequence[int]) -> list[list[int]]:
    """Return ever shorter lists of positions: the cheaper state of each two neighbours goes on to the next list."""
    levels = [list(range(1, len(state_bytes)))]
    while len(levels[-1]) > _POSITIONS:
        last = levels[-1]
        levels.append([min(last[i : i + 2], key=lambda step: state_bytes[step]) for i in range(0, len(last), 2)])
    return levels
