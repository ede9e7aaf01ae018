"""The resident memory of this process, measured from outside the program.

Linux keeps the largest resident size of a process (``VmHWM``), and the process may reset it. The
kernel sees every page, so no peak is missed. If the reset is not permitted, a thread samples the
resident size and may miss a short peak. If that cannot be read either, the figure is None. The
method is part of the result.

Resident is not allocated. Pages that an allocator kept from earlier work and reuses count as idle,
and a program that runs in them does not show. Memory that glibc keeps is released before the block.
In the block each larger piece is mapped when it is allocated, and unmapped when it is freed.
TensorFlow's own allocator needs ``forget_free_memory`` for that. Parameters and fed data are
resident before the block, and so not counted: the result is comparable with the not-always-live
peak. The first run of a program compiles it, which takes some 100 MiB, so measure a later one.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

HIGH_WATER, SAMPLED = "VmHWM", "sampled"
_INTERVAL_SECONDS = 0.002
# Options of mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, in the block and behind it. Setting
# them ends glibc's own rule, which raises them when large pieces are freed: up to the second pair.
_THRESHOLDS = {-1: (2**16, 2**26), -3: (2**16, 2**25)}
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class MeasuredMemory:
    """Memory of a measured block, filled in when the block ends.

    Attributes:
        idle_bytes: Held before the block.
        peak_bytes: Held at its peak.
        method: How they were measured.
    """

    idle_bytes: int | None = None
    peak_bytes: int | None = None
    method: str | None = None

    @property
    def over_idle_bytes(self) -> int | None:
        """Bytes that the block took beyond what was held before it."""
        if self.idle_bytes is None or self.peak_bytes is None:
            return None
        return max(self.peak_bytes - self.idle_bytes, 0)


@contextmanager
def process_memory() -> Iterator[MeasuredMemory]:
    """Measure the peak resident bytes of this process while the block runs.

    Blocks must not be nested, since the kernel keeps one high-water mark per process. Garbage is
    collected first, so that the block cannot reuse it. Before a compiled TensorFlow program, call
    ``forget_free_memory(program.allocated_temporary_bytes)``.

    Returns:
        A context manager that gives a ``MeasuredMemory``, filled in when the block ends.

    Examples:
        >>> with kr.liveness.process_memory() as measured:
        ...     x = np.ones(2**23)
        >>> measured.over_idle_bytes is None or measured.over_idle_bytes > 60 * 2**20
        True
    """
    # Garbage would otherwise be idle memory that the block can reuse.
    gc.collect()
    _give_back_free_pages()
    measured = MeasuredMemory()
    with pieces_mapped():
        yield from _measure(measured)


def _measure(measured: MeasuredMemory) -> Iterator[MeasuredMemory]:
    if _reset_high_water():
        measured.idle_bytes = _resident("VmRSS")
        yield measured
        measured.peak_bytes, measured.method = _resident("VmHWM"), HIGH_WATER
        return
    measured.idle_bytes = _resident("VmRSS")
    if measured.idle_bytes is None:
        yield measured
        return
    sampler = _Sampler(measured.idle_bytes)
    sampler.start()
    try:
        yield measured
    finally:
        measured.peak_bytes, measured.method = sampler.finish(), SAMPLED


class _Sampler(threading.Thread):
    def __init__(self, idle: int):
        super().__init__(name="process-memory", daemon=True)
        self._peak, self._done = idle, threading.Event()

    def run(self) -> None:
        while not self._done.wait(_INTERVAL_SECONDS):
            self._peak = max(self._peak, _resident("VmRSS") or 0)

    def finish(self) -> int:
        """Stop sampling and return the largest size seen, including the present one."""
        self._done.set()
        self.join()
        return max(self._peak, _resident("VmRSS") or 0)


def resident_bytes() -> int | None:
    """Return the resident bytes of this process; None if the system does not report them."""
    return _resident("VmRSS")


def _give_back_free_pages() -> None:
    """Make glibc return freed memory to the system; other C libraries have no such call."""
    if trim := _of_glibc("malloc_trim"):
        trim(0)


def _of_glibc(name: str) -> Any:
    """Return a function of the C library; None where it has none of that name."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except OSError:
        return None


@contextmanager
def pieces_mapped() -> Iterator[None]:
    """Return a context in which glibc maps larger pieces instead of reusing what it has kept."""
    set_option = _of_glibc("mallopt")
    if set_option is None:
        yield
        return
    for option, (inside, _) in _THRESHOLDS.items():
        set_option(option, inside)
    try:
        yield
    finally:
        for option, (_, behind) in _THRESHOLDS.items():
            set_option(option, behind)


def _reset_high_water() -> bool:
    """Reset the high-water mark to the present resident size; return whether that is permitted."""
    try:
        # Writing 5 resets VmHWM (proc(5), /proc/pid/clear_refs).
        _RESET.write_text("5")
    except OSError:
        return False
    return _resident("VmHWM") is not None


def _resident(name: str) -> int | None:
    """Return a figure of this process in bytes, or None if the system does not report it."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(values[0]) * 1024 if values else None  # the kernel counts in KiB and calls them kB
