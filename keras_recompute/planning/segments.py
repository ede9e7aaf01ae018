"""Plans as one decision per segment of the chain, unfolded into actions.

A segment is a range of steps whose input has just come in hand. Exactly one decision does its
backward pass:

* ``Whole``: keep all its activations, then run backward;
* ``KeepFirst``: keep the first steps, treat the rest as a segment, then run the first ones
  backward;
* ``Split``: store the input, advance to a later step, treat what follows as a segment, restore the
  input, and treat the first part as a segment.

The input of a segment is freed just before the first Keep that starts from it. So every plan made
here is persistent: a stored checkpoint stays until its last use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Generic, Iterator, TypeVar

from .actions import Action, Advance, Backward, Free, Keep, Restore, Store

Key = TypeVar("Key")


@dataclass(frozen=True)
class Whole:
    """Keep every step of the segment."""


@dataclass(frozen=True)
class KeepFirst(Generic[Key]):
    """Keep the first ``count`` steps; ``rest`` is the key that ``decide`` gets for the others."""

    count: int
    rest: Key


@dataclass(frozen=True)
class Split(Generic[Key]):
    """Store the input and advance ``count`` steps; ``before`` and ``after`` are the parts' keys."""

    count: int
    before: Key
    after: Key


def unfold(
    steps: int, key: Key, decide: Callable[[int, int, Key], Whole | KeepFirst[Key] | Split[Key]]
) -> Iterator[Action]:
    """Yield the actions for ``steps``, calling ``decide(begin, end, key)`` once per segment."""
    # A stack instead of recursion, since segments can nest as deep as the chain is long.
    todo: list[Backward | tuple[int, int, Key, bool]] = [(0, steps, key, False)]
    while todo:
        item = todo.pop()
        if isinstance(item, Backward):
            yield item
            continue
        begin, end, key, stored = item
        if stored:
            yield Restore(begin)
        choice = decide(begin, end, key)
        if isinstance(choice, Split):
            middle = begin + choice.count
            if not stored:
                yield Store(begin)
            yield Advance(begin, middle)
            # A stack: what is appended last is done first.
            todo.append((begin, middle, choice.before, True))
            todo.append((middle, end, choice.after, False))
            continue
        if stored:
            yield Free(begin)
        kept = end if isinstance(choice, Whole) else begin + choice.count
        yield Keep(begin, kept)
        todo.append(Backward(begin, kept))
        if isinstance(choice, KeepFirst):
            todo.append((kept, end, choice.rest, False))
