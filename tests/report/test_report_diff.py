"""What differs between two programs, as rows."""

from __future__ import annotations

import dataclasses

import pytest

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.report.diff import (
    GROUPINGS,
    UNNAMED,
    ChangeRow,
    count_changes,
    group_rows,
    live_at,
    peak_changes,
    size_changes,
)

MIB = 2**20


@pytest.fixture
def half(program):
    """The same program with its largest temporary half as large, and the allocator's figure not
    known.
    """
    steps = tuple(
        dataclasses.replace(s, not_always_live_bytes=s.not_always_live_bytes // 2)
        for s in program.steps
    )
    buffers = tuple(
        dataclasses.replace(b, size_bytes=15 * MIB) if b.name == "fusion.1" else b
        for b in program.buffers
    )
    return dataclasses.replace(
        program, steps=steps[:-1], buffers=_cut(buffers, 6), allocated_temporary_bytes=None
    )


def _cut(buffers, last):
    return tuple(dataclasses.replace(b, last_step=min(b.last_step, last)) for b in buffers)


def test_sizes(program, half):
    assert size_changes(program, half) == [
        ChangeRow("peak", 50 * MIB, 30 * MIB),
        ChangeRow("always-live", 10 * MIB, 10 * MIB),
        ChangeRow("not-always-live at the peak", 40 * MIB, 20 * MIB),
        ChangeRow("input feed, counted apart", 64 * MIB, 64 * MIB),
        ChangeRow("reserved by the allocator", 44 * MIB, None),
        ChangeRow("fragmentation of it", 4 * MIB, None),
    ]
    assert [row.change for row in size_changes(program, half)] == [
        -20 * MIB,
        0,
        -20 * MIB,
        0,
        None,
        None,
    ]
    assert size_changes(program, half)[0].share == -0.4
    assert count_changes(program, half)[0] == ChangeRow("program steps", 8, 7)


def test_a_share_of_nothing_is_not_known():
    assert ChangeRow("", 0, 5).share is None
    assert ChangeRow("", None, 5).share is None


@pytest.mark.parametrize("by", GROUPINGS)
def test_groups_add_up_to_what_is_alive(program, half, by):
    for step in range(program.program_steps):
        assert sum(count for _, count in group_rows(program, step, by)) == sum(
            b.size_bytes for b in live_at(program, step)
        )
    rows = peak_changes(program, half, by)
    alive = [sum(b.size_bytes for b in p.live_at(p.peak_step)) for p in (program, half)]
    assert [sum(r.before for r in rows), sum(r.after for r in rows)] == alive


def test_groups(program):
    assert group_rows(program, 5, "layer") == [("net/lstm", 40 * MIB), (UNNAMED, 10 * MIB)]
    assert group_rows(program, 0, "category") == [("weight", 10 * MIB)]


def test_changes_are_sorted_by_their_size(program, half):
    assert [(row.name, row.change) for row in peak_changes(program, half, "category")] == [
        ("activation", -15 * MIB),
        ("gradient", 0),
        ("weight", 0),
    ]


def test_what_is_not_there_is_refused(program):
    with pytest.raises(InvalidArgumentError, match="step 8 is not one of the 8 steps, 0 to 7"):
        live_at(program, 8)
    with pytest.raises(InvalidArgumentError, match="cannot be grouped by 'colour'"):
        group_rows(program, 0, "colour")
