"""Replay of an allocator's trace: which storage was held from which program step to which.

A compiler that plans memory leaves a trace of events: a buffer is allocated, freed, or shares the
storage of another (an update in place, a value carried around a loop). Storage is held until the
last of its sharers is freed.

The step of an allocation is known. Of a free, the trace only says that it lies between two other
events. The storage is shown as held up to the step before the next event, the latest possible step.
At the peak of the trace this changes nothing, because a sum reaches a peak only when something is
allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterable

from ..errors import ReportError

ALLOCATE, FREE, SHARE = "allocate", "free", "share"


@dataclass(frozen=True)
class Event:
    """One event of the trace; ``step`` holds for ALLOCATE and SHARE, ``shares_with`` for SHARE."""

    kind: str
    buffer: int
    size_bytes: int
    step: int = 0
    shares_with: int = 0


@dataclass
class Storage:
    """Bytes held over a range of steps.

    ``buffers`` are all that ever lived in the same place, in order of appearance, those of its
    other ranges included.
    """

    size_bytes: int
    first_step: int
    last_step: int
    buffers: list[int]


def replay_allocations(
    events: Iterable[Event], *, last_step: int
) -> tuple[list[Storage], list[int]]:
    """Return the storage in order of allocation, and the bytes held after each event.

    Steps must not decrease (see ``with_monotone_steps``). Raises ReportError for a trace that frees
    or shares what is not there, or allocates twice.
    """
    storages: list[Storage] = []
    place_of: dict[int, int] = {}  # buffer -> the buffer first allocated in the same place
    buffers_in: dict[int, list[int]] = {}
    holders: dict[int, set[int]] = {}
    current: dict[int, Storage] = {}
    freed: list[Storage] = []
    bytes_held, totals = 0, []
    for event in events:
        if event.kind == FREE:
            place = place_of.get(event.buffer, -1)
            if event.buffer not in holders.get(place, ()):
                raise ReportError(
                    f"the heap trace is damaged: it frees buffer {event.buffer}, which is not "
                    "allocated"
                )
            holders[place].remove(event.buffer)
            if not holders[place]:
                bytes_held -= current[place].size_bytes
                freed.append(current[place])
        else:
            place = place_of.get(event.shares_with, -1) if event.kind == SHARE else event.buffer
            if event.buffer in place_of or (event.kind == SHARE and place not in current):
                raise ReportError(
                    f"the heap trace is damaged: buffer {event.buffer} is allocated twice or "
                    "shares nothing"
                )
            # Now the latest possible step of the frees before this allocation is known.
            for storage in freed:
                storage.last_step = max(storage.first_step, event.step - 1)
            freed.clear()
            # A place may be shared after its last holder was freed: a value that a loop carries is
            # dead between its last read and its next write, though it returns to the same place.
            if not holders.setdefault(place, set()):
                size = current[place].size_bytes if event.kind == SHARE else event.size_bytes
                current[place] = Storage(
                    size, event.step, last_step, buffers_in.setdefault(place, [])
                )
                storages.append(current[place])
                bytes_held += size
            place_of[event.buffer] = place
            holders[place].add(event.buffer)
            buffers_in[place].append(event.buffer)
        totals.append(bytes_held)
    return storages, totals


def with_monotone_steps(events: Iterable[Event]) -> tuple[list[Event], int]:
    """Return the events with steps that never decrease, and how many were moved to a later step."""
    ordered, moved, latest = [], 0, 0
    for event in events:
        late = event.kind != FREE and event.step < latest
        moved += late
        latest = max(latest, event.step)
        ordered.append(replace(event, step=latest) if late else event)
    return ordered, moved


def held_at_steps(events: Iterable[Event], totals: Iterable[int], steps: int) -> list[int]:
    """Return the bytes held at each step, from the totals after each event alone."""
    held = [0] * steps
    level, next_step = 0, 0
    for event, total in zip(events, totals):
        if event.kind != FREE:
            held[next_step : event.step] = [level] * (event.step - next_step)
            level, next_step = total, event.step
    held[next_step:] = [level] * (steps - next_step)
    return held
