"""The memory of this process, with allocations of known size."""

from __future__ import annotations

import sys
import time

import pytest

from keras_recompute.liveness import process, process_memory

MIB = 2**20
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the system does not tell resident sizes in /proc"
)


@linux
@pytest.mark.parametrize("reset", [True, False])
def test_a_short_allocation_is_seen(monkeypatch, tmp_path, reset):
    if not reset:
        monkeypatch.setattr(process, "_RESET", tmp_path / "none" / "clear_refs")
    elif not process._reset_high_water():
        pytest.skip("this system does not let a process reset its high-water mark")
    with process_memory() as measured:
        block = b"1" * (64 * MIB)
        if not reset:
            time.sleep(0.1)  # a sampler has to be given the time to look
        del block
    assert measured.method == (process.HIGH_WATER if reset else process.SAMPLED)
    assert measured.over_idle_bytes is not None
    assert 60 * MIB < measured.over_idle_bytes < 2 * 64 * MIB


@linux
def test_an_earlier_peak_is_forgotten():
    if not process._reset_high_water():
        pytest.skip("this system does not let a process reset its high-water mark")
    block = b"1" * (128 * MIB)
    del block
    with process_memory() as measured:
        pass
    assert measured.over_idle_bytes < 16 * MIB


def test_nothing_is_claimed_where_nothing_can_be_read(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "_RESET", tmp_path / "none" / "clear_refs")
    monkeypatch.setattr(process, "_STATUS", tmp_path / "none")
    with process_memory() as measured:
        pass
    assert (
        measured.idle_bytes,
        measured.peak_bytes,
        measured.over_idle_bytes,
        measured.method,
    ) == (None,) * 4
