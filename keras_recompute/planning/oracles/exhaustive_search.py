"""The true optimum for short chains, by A* search over all orders of actions.

``pareto_frontier`` considers persistent plans only. On uneven chains it can pay to free a
checkpoint and store it again, and the optimum over all plans is NP-hard. So chains of up to
``LONGEST`` steps are searched.

A search state has the number of unfinished steps, the state in hand, and bit masks of the stored
states and of the kept activations. The heuristic: every step must be kept once and run backward
once, so only the cost beyond that is counted.

Source: Beaumont et al. 2024, "Optimal checkpointing for heterogeneous chains", ACM TOMS.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Iterator, Sequence, Tuple

from ..actions import Action, Advance, Backward, Free, Keep, Restore, Store
from ..chain import Chain

LONGEST = 8

# Unfinished steps, the state in hand (-1: none), the stored states, the kept activations.
_State = Tuple[int, int, int, int]


def fastest_actions(
    chain: Chain, *, room_bytes: int, seconds_at_most: float
) -> tuple[Action, ...] | None:
    """Return the fastest plan in ``room_bytes``, with the smallest peak among equals; or None.

    ``room_bytes`` is the budget without fixed bytes. None also means that nothing replays at most
    ``seconds_at_most``: a known bound saves time.
    """
    return _search(chain, room_bytes=room_bytes, seconds_at_most=seconds_at_most, peak_first=False)


def leanest_actions(chain: Chain, *, room_bytes: int) -> tuple[Action, ...] | None:
    """Return the plan with the smallest possible peak, the fastest among equals, or None."""
    return _search(chain, room_bytes=room_bytes, seconds_at_most=float("inf"), peak_first=True)


def _search(
    chain: Chain, *, room_bytes: int, seconds_at_most: float, peak_first: bool
) -> tuple[Action, ...] | None:
    """Search by Dijkstra's algorithm over pairs of peak and seconds, compared in either order.

    Neither falls along a path, as the algorithm needs.
    """
    start: _State = (len(chain), 0, 0, 0)
    best: dict[_State, tuple[float, float]] = {start: (0, 0)}
    came_from: dict[_State, tuple[_State, Action]] = {}
    # Breaks ties in the queue by age.
    order = count()
    queue: list[tuple[float, float, int, float, _State]] = [(0, 0, next(order), 0, start)]
    while queue:
        first, second, _, replayed, state = heappop(queue)
        # An outdated entry: the state was reached more cheaply in the meantime.
        if (first, second) > best[state]:
            continue
        if not state[0] and not state[2]:
            return _path(came_from, state)
        peak = first if peak_first else second
        for action, after, alive, seconds in _moves(chain, state):
            total = replayed + seconds
            if alive > room_bytes or total > seconds_at_most:
                continue
            label = (max(peak, alive), total) if peak_first else (total, max(peak, alive))
            if after not in best or label < best[after]:
                best[after] = label
                came_from[after] = (state, action)
                heappush(queue, (*label, next(order), total, after))
    return None


def _moves(chain: Chain, state: _State) -> Iterator[tuple[Action, _State, int, float]]:
    """Yield possible actions, each with the next state, bytes alive and seconds replayed.

    Keep and Backward replay nothing, since each step needs both once. A state is freed while in
    hand or not at all: its last use is a Restore, and waiting longer gains nothing.
    """
    unfinished, hand, stored, kept = state
    held = _bytes(chain.state_bytes, stored) + _bytes(chain.activation_bytes, kept)
    last = unfinished - 1
    for step in range(unfinished):
        if stored >> step & 1:
            if step == hand:
                yield Free(step), (unfinished, hand, stored ^ 1 << step, kept), held, 0
            else:
                yield Restore(step), (unfinished, step, stored, kept), held, 0
    if 0 <= hand < unfinished:
        working = held + chain.working_bytes[hand]
        if not stored >> hand & 1:
            alive = held + chain.state_bytes[hand]
            yield Store(hand), (unfinished, hand, stored | 1 << hand, kept), alive, 0
        if hand < last:
            yield (
                Advance(hand, hand + 1),
                (unfinished, hand + 1, stored, kept),
                working,
                chain.forward_seconds[hand],
            )
        if not kept >> hand & 1:
            alive = working + chain.activation_bytes[hand]
            yield Keep(hand, hand + 1), (unfinished, hand + 1, stored, kept | 1 << hand), alive, 0
    if unfinished and kept >> last & 1:
        yield (
            Backward(last, unfinished),
            (last, -1, stored, kept ^ 1 << last),
            held + chain.working_bytes[last],
            0,
        )


def _bytes(sizes: Sequence[int], mask: int) -> int:
    return sum(size for step, size in enumerate(sizes) if mask >> step & 1)


def _path(came_from: dict[_State, tuple[_State, Action]], state: _State) -> tuple[Action, ...]:
    actions = []
    while state in came_from:
        state, action = came_from[state]
        actions.append(action)
    return tuple(reversed(actions))
