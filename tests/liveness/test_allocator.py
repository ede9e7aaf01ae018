"""What TensorFlow's allocators keep and state: the memory of a program whose size is known, and a
double of a GPU.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

tf = pytest.importorskip("tensorflow")

from keras_recompute.liveness import device_memory, forget_free_memory  # noqa: E402

MIB = 2**20

# In a process of its own: how much TensorFlow's allocator keeps depends on all that ran before.
PROGRAM = """
import tensorflow as tf
from small_programs import scan
from keras_recompute.liveness import compile_program, forget_free_memory, process_memory

step, x = scan(4096), tf.ones((64, 32))  # its states, and their squares: 32 MiB each
expected = compile_program(step, x).program()
step(x)  # compiles, and leaves its memory with the allocator
found = []
for forget in (False, True):
    if forget:
        found.append(forget_free_memory(expected.allocated_temporary_bytes))
    with process_memory() as measured:
        step(x)
    found += [measured.idle_bytes, measured.over_idle_bytes]
print(expected.not_always_live_peak_bytes, *found)
"""


@pytest.mark.long
@pytest.mark.skipif(
    sys.platform != "linux", reason="the system does not tell resident sizes in /proc"
)
def test_a_program_is_seen_once_the_allocator_has_forgotten():
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parent), str(here.parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    expected, idle, kept, forgotten, idle_then, seen = map(int, done.stdout.split())
    assert expected >= 64 * MIB
    if kept < 0.1 * expected:  # it ran in memory that was resident already
        assert forgotten >= 0.95 * expected
        assert idle - idle_then > 0.5 * forgotten  # the run between took some for itself
    else:  # without oneDNN, as on older processors, such memory is given back at once
        assert 0.95 * expected < kept < 1.1 * expected
        assert forgotten < 0.1 * expected
    assert 0.95 * expected < seen < 1.1 * expected


def test_nothing_is_forgotten_that_is_in_use():
    kept = [tf.fill((MIB,), float(n)) for n in range(4)]
    free = tf.fill((MIB,), 9.0)
    del free
    forget_free_memory(4 * MIB)
    assert [float(tf.reduce_sum(t)) for t in kept] == [n * MIB for n in range(4)]
    assert float(tf.reduce_sum(tf.zeros((MIB,)))) == 0.0


def kept_and_forgotten():
    """Free a tensor of 48 MiB; return the bytes that stay resident of it, those that
    ``forget_free_memory`` says it released, and those that are resident after that.
    """

    def resident_bytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def filled():
        return tf.fill((12 * MIB,), 1.0)  # 48 MiB

    filled()  # what the process takes for itself at the first time is not measured
    forget_free_memory(96 * MIB)
    before = resident_bytes()
    half = filled()
    assert resident_bytes() - before >= 47 * MIB
    del half
    kept_bytes = resident_bytes() - before
    return kept_bytes, forget_free_memory(96 * MIB), resident_bytes() - before


@pytest.mark.long
def test_memory_in_pieces_is_found():
    """Half of what is asked for is free, in one piece, and smaller than all that was ever free
    before. In a process of its own, as above.

    Without oneDNN, as on older processors, TensorFlow gives such a piece back by itself.
    """
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawned) as alone:
        kept_bytes, forgotten_bytes, left_bytes = alone.submit(kept_and_forgotten).result()
    assert forgotten_bytes >= kept_bytes - MIB
    assert left_bytes <= MIB


@pytest.mark.parametrize("count", [0, 1, MIB - 1])
def test_less_than_a_mebibyte_is_let_be(count):
    assert forget_free_memory(count) == 0


def test_an_allocator_that_gives_nothing_is_let_be(monkeypatch):
    def refuse(**_):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    monkeypatch.setattr(tf.raw_ops, "Empty", refuse)
    assert forget_free_memory(64 * MIB) == 0


def test_without_a_gpu_nothing_is_claimed(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: [])
    with device_memory() as measured:
        pass
    assert (
        measured.idle_bytes,
        measured.peak_bytes,
        measured.over_idle_bytes,
        measured.method,
    ) == (None,) * 4


def test_a_gpu_tells_its_peak(monkeypatch):
    """A double of a GPU's statistics: a reset forgets the earlier peak and keeps what is held."""
    state = {"current": 10 * MIB, "peak": 90 * MIB}
    asked = []

    def reset(device):
        asked.append(device)
        state["peak"] = state["current"]

    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [SimpleNamespace(name=f"/device:{kind}:0")]
    )
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", reset)
    monkeypatch.setattr(
        tf.config.experimental,
        "get_memory_info",
        lambda device: asked.append(device) or dict(state),
    )
    with device_memory() as measured:
        state.update(current=12 * MIB, peak=40 * MIB)
    assert (measured.idle_bytes, measured.peak_bytes, measured.over_idle_bytes) == (
        10 * MIB,
        40 * MIB,
        30 * MIB,
    )
    assert measured.method == "allocator of GPU:0"
    assert set(asked) == {"GPU:0"}
