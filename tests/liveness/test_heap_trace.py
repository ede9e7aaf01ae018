"""The allocator's events, replayed on cases small enough to follow."""

from __future__ import annotations

import pytest

from keras_recompute.errors import ReportError
from keras_recompute.liveness.heap_trace import (
    ALLOCATE,
    FREE,
    SHARE,
    Event,
    held_at_steps,
    replay_allocations,
    with_monotone_steps,
)


def allocate(buffer, size, step):
    return Event(ALLOCATE, buffer, size, step)


def share(buffer, other, step):
    return Event(SHARE, buffer, 0, step, other)


def free(buffer):
    return Event(FREE, buffer, 0)


def stretches(events, last_step):
    return [
        (s.size_bytes, s.first_step, s.last_step)
        for s in replay_allocations(events, last_step=last_step)[0]
    ]


def test_storage_is_held_until_the_event_after_its_free():
    events = [allocate(1, 100, 0), allocate(2, 10, 2), free(1), allocate(3, 7, 5), free(2), free(3)]
    assert stretches(events, 9) == [(100, 0, 4), (10, 2, 9), (7, 5, 9)]
    assert replay_allocations(events, last_step=9)[1] == [100, 110, 10, 17, 7, 0]


def test_the_peak_is_that_of_the_trace():
    events = [
        allocate(1, 100, 0),
        free(1),
        allocate(2, 90, 1),
        allocate(3, 20, 1),
        free(3),
        free(2),
    ]
    storages, totals = replay_allocations(events, last_step=1)
    at_one = sum(s.size_bytes for s in storages if s.first_step <= 1 <= s.last_step)
    assert at_one == max(totals) == 90 + 20


def test_shared_storage_counts_once_and_is_held_until_its_last_sharer_is_freed():
    events = [
        allocate(1, 100, 0),
        share(2, 1, 3),
        free(1),
        allocate(3, 1, 4),
        free(2),
        allocate(4, 1, 6),
    ]
    assert stretches(events, 6) == [(100, 0, 5), (1, 4, 6), (1, 6, 6)]


def test_a_place_is_empty_between_a_loops_last_reading_and_next_writing():
    events = [allocate(1, 100, 0), free(1), allocate(2, 5, 2), share(3, 1, 4), allocate(4, 5, 6)]
    storages, totals = replay_allocations(events, last_step=7)
    assert [(s.size_bytes, s.first_step, s.last_step) for s in storages] == [
        (100, 0, 1),
        (5, 2, 7),
        (100, 4, 7),
        (5, 6, 7),
    ]
    assert storages[0].buffers == storages[2].buffers == [1, 3]
    assert totals == [100, 0, 5, 105, 110]


def test_levels_at_steps_agree_with_the_storage():
    events = [
        allocate(1, 100, 1),
        allocate(2, 10, 2),
        free(1),
        share(3, 2, 4),
        free(2),
        allocate(4, 7, 5),
    ]
    storages, totals = replay_allocations(events, last_step=6)
    levels = [
        sum(s.size_bytes for s in storages if s.first_step <= n <= s.last_step) for n in range(7)
    ]
    assert held_at_steps(events, totals, 7) == levels == [0, 100, 110, 110, 10, 17, 17]


@pytest.mark.parametrize(
    "events",
    [
        [free(1)],
        [allocate(1, 1, 0), free(1), free(1)],
        [allocate(1, 1, 0), allocate(1, 1, 1)],
        [share(2, 1, 0)],
        [allocate(1, 1, 0), share(1, 1, 1)],
    ],
)
def test_a_damaged_trace_is_refused(events):
    with pytest.raises(ReportError, match="damaged"):
        replay_allocations(events, last_step=9)


def test_events_out_of_order_are_moved_and_counted():
    ordered, moved = with_monotone_steps(
        [allocate(1, 1, 3), free(1), allocate(2, 1, 2), allocate(3, 1, 4)]
    )
    assert [e.step for e in ordered if e.kind == ALLOCATE] == [3, 3, 4]
    assert moved == 1
