"""Where to put checkpoints in a graph of layers: at cuts that few bytes cross.

A checkpoint behind a call ends a section: all calls that lead to it and are in no earlier section.
The values that the rest of the graph reads are kept. In a chain that is one value at each cut,
small behind a pooling layer and large behind an expansion. Inside a residual block it is the
shortcut as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .call_graph import Call, Key, ancestors


def evenly_spaced_cuts(count: int, calls: Sequence[Call]) -> tuple[int, ...]:
    """Return the positions of calls that end sections of ``count`` calls or a few more.

    A section may have from half of ``count`` to less than twice as many calls. Of its possible ends
    the one that the fewest bytes cross is taken, and of several such the one nearest to ``count``,
    rather above than below. Behind the last position at least half of ``count`` calls are left.
    They are not recomputed, and fewer would leave the section before them to be replayed as soon as
    it has run.
    """
    leading = ancestors(calls)
    counted = 0
    for number, call in enumerate(calls):
        if not call.is_checkpoint_layer:
            counted |= 1 << number
    positions: list[int] = []
    # Sets of calls are the bits of a number.
    done = 0
    while True:
        # Possible sections that are long enough: size and last call.
        long: list[tuple[int, int]] = []
        # Those of a size near ``count``, with what to prefer first: the fewest bytes, then rather
        # above ``count`` than below, then the nearest size.
        near: list[tuple[int, bool, int, int]] = []
        for n in range(len(calls)):
            if done >> n & 1:
                continue
            made = done | leading[n]
            size = (leading[n] & ~done & counted).bit_count()
            left = (counted & ~made).bit_count()
            if 2 * size < count or 2 * left < count:
                continue
            kept_bytes = bytes_crossing(made, calls)
            if not kept_bytes:
                continue
            if size >= count:
                long.append((size, n))
            if size < 2 * count:
                near.append((kept_bytes, size < count, abs(size - count), n))
        if not long:
            return tuple(sorted(positions))
        shortest, position = min(long)
        if shortest < 2 * count:
            position = min(near)[-1]
        positions.append(position)
        done |= leading[position]


def bytes_crossing(done: int, calls: Sequence[Call]) -> int:
    """Return the size for one sample of the values that the calls in ``done`` hand to others."""
    made: dict[Key, int] = {}
    read: set[Key] = set()
    for number, call in enumerate(calls):
        if done >> number & 1:
            made.update(zip(call.outputs, call.output_bytes))
        else:
            read.update(call.inputs)
    return sum(made[key] for key in read.intersection(made))


def single_cuts(calls: Sequence[Call]) -> list[int]:
    """Return the positions of calls that all earlier calls lead to, and the last position."""
    last = len(calls) - 1
    found = []
    for n, needed in enumerate(ancestors(calls)[:last]):
        if needed == (1 << (n + 1)) - 1:
            found.append(n)
    return [*found, last]


def checkpoint_places(calls: Sequence[Call]) -> list[int]:
    """Return the ``single_cuts`` of ``calls``, and of each long branch behind another one.

    In a model with two towers no call of the first leads to one of the second. So the places in
    the second are the cuts of that tower alone, and a checkpoint there keeps the end of the first
    one too (``with_ends_of_branches``). Short branches, as in a block of an Inception, have none.
    """
    leading = ancestors(calls)
    long = round(len(calls) ** 0.5)  # no section needs to be shorter
    ended = 0  # calls of branches that have run to their end
    places: list[int] = []
    for n, needed in enumerate(leading):
        earlier = (1 << n) - 1
        if places and earlier & ~(needed | ended) and not needed >> places[-1] & 1:
            joins = (m for m in range(n, len(calls)) if leading[m] >> places[-1] & 1)
            if next(joins, len(calls)) - n > long:
                ended = (2 << places[-1]) - 1
        if not earlier & ~(needed | ended) or n == len(calls) - 1:
            places.append(n)
    return places


def with_ends_of_branches(positions: Iterable[int], calls: Sequence[Call]) -> list[int]:
    """Return ``positions``, and the ends of branches that run before one and do not lead to it.

    So every call before a position is in a section that ends there or earlier.
    """
    leading = ancestors(calls)
    ends: set[int] = set()
    done = 0
    for position in sorted(positions):
        ends.add(position)
        done |= leading[position]
        while missing := ((1 << position) - 1) & ~done:
            last = missing.bit_length() - 1
            ends.add(last)
            done |= leading[last]
    return sorted(ends)


def order_with_most_cuts(calls: Sequence[Call]) -> list[int]:
    """Return the positions of ``calls`` in the order in which there are most ``single_cuts``.

    Keras runs layers by their distance from the outputs. Then the first layers of a decoder run
    between those of its encoder, and no call of the encoder has all earlier ones lead to it. In the
    other order each branch runs to its end, the longest first.
    """
    running = list(range(len(calls)))
    by_branches = _order_by_branches(calls)
    reordered = [calls[n] for n in by_branches]
    return by_branches if len(single_cuts(reordered)) > len(single_cuts(calls)) else running


def _order_by_branches(calls: Sequence[Call]) -> list[int]:
    maker: dict[Key, int] = {}
    for n, call in enumerate(calls):
        maker.update(dict.fromkeys(call.outputs, n))
    length = [needed.bit_count() for needed in ancestors(calls)]
    order: dict[int, None] = {}
    # From the last call backwards, each behind what it reads.
    waiting = list(range(len(calls)))
    while waiting:
        n = waiting[-1]
        read = {maker[key] for key in calls[n].inputs if key in maker}.difference(order)
        if n in order or not read:
            order[waiting.pop()] = None
        else:
            waiting.extend(sorted(read, key=length.__getitem__))
    return list(order)
