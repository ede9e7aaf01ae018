"""The fewest seconds of any order of actions on a short chain, by uniform-cost search.

The rules: a step starts from its input in hand, and runs backward once, after its successor and
with its activations kept. Memory holds stored states and kept activations, and the working bytes of
the step that runs.
"""

from heapq import heappop, heappush


def fewest_forward_seconds(chain, budget_bytes):
    """Return the seconds of all forward steps of the fastest plan; None where none fits.

    One step is run, or one value stored or dropped, at a time.
    """
    steps, room = len(chain), budget_bytes - chain.fixed_bytes
    start = (steps, 0, frozenset(), frozenset())
    known, queue, ticket = {start: 0}, [(0, 0, start)], 0
    while queue:
        seconds, _, state = heappop(queue)
        if seconds > known[state]:
            continue
        unfinished, hand, stored, kept = state
        if unfinished == 0:
            return seconds
        held = sum(chain.state_bytes[i] for i in stored) + sum(
            chain.activation_bytes[i] for i in kept
        )
        following = [(0, held, (unfinished, hand, stored - {i}, kept)) for i in stored]
        following += [(0, held, (unfinished, i, stored, kept)) for i in stored]
        if hand is not None and hand < unfinished:
            cost, during = chain.forward_seconds[hand], held + chain.working_bytes[hand]
            following.append(
                (0, held + chain.state_bytes[hand], (unfinished, hand, stored | {hand}, kept))
            )
            following.append((cost, during, (unfinished, hand + 1, stored, kept)))
            if hand not in kept:
                more = during + chain.activation_bytes[hand]
                following.append((cost, more, (unfinished, hand + 1, stored, kept | {hand})))
        if unfinished - 1 in kept:
            during = held + chain.working_bytes[unfinished - 1]
            following.append((0, during, (unfinished - 1, None, stored, kept - {unfinished - 1})))
        for cost, needed, after in following:
            if needed <= room and seconds + cost < known.get(after, float("inf")):
                known[after] = seconds + cost
                ticket += 1
                heappush(queue, (seconds + cost, ticket, after))
    return None
