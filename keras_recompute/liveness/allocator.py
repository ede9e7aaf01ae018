"""TensorFlow's allocators: GPU statistics, and trimming of free memory that the CPU's keeps.

On a CPU, TensorFlow's allocator returns nothing to the system. The memory of freed tensors stays
resident and is reused. A program that runs in such memory does not let the process grow, so its
memory cannot be measured from outside. (With TensorFlow 2.21 a program with 169 MiB of temporaries
showed nothing, since stacking its microbatches had taken as much.) ``forget_free_memory`` releases
the free pages.

The GPU part was tested with a double only.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import contextmanager
from typing import Any, Iterator

from .process import MeasuredMemory

_SMALLEST = 2**20
_ELEMENT_BYTES = 16  # of complex128
_LARGEST = (2**31 - 1) * _ELEMENT_BYTES  # tf.raw_ops.Empty takes a shape of int32
_DONT_NEED = 4  # MADV_DONTNEED: the pages are dropped, and read as zeros when next touched
_FRESH = 0.02  # resident share below which a piece is new from the system, and not reused


@contextmanager
def device_memory() -> Iterator[MeasuredMemory]:
    """Measure the peak bytes of the first GPU's allocator while the block runs.

    Without a GPU the figures stay None. Parameters and data that are on the GPU before the block
    count as idle.

    Returns:
        A context manager that gives a ``MeasuredMemory``, filled in when the block ends.

    Examples:
        >>> with kr.liveness.device_memory() as measured:
        ...     x = tf.ones((64, 64))
        >>> (measured.peak_bytes is None) == (not tf.config.list_logical_devices("GPU"))
        True
    """
    import tensorflow as tf

    measured = MeasuredMemory()
    devices = tf.config.list_logical_devices("GPU")
    statistics = tf.config.experimental
    if not devices:
        yield measured
        return
    name = ":".join(devices[0].name.rsplit(":", 2)[1:])  # "/device:GPU:0" -> "GPU:0"
    statistics.reset_memory_stats(name)
    measured.idle_bytes = statistics.get_memory_info(name)["current"]
    yield measured
    measured.peak_bytes = statistics.get_memory_info(name)["peak"]
    measured.method = f"allocator of {name}"


def forget_free_memory(program_bytes: int) -> int:
    """Release the free memory that TensorFlow's CPU allocator keeps; return how many bytes.

    Free memory is looked for in pieces of all of the program's bytes, of half of them, and so on
    down to 1 MiB. Does nothing where the system is not Linux, or where the allocator refuses.

    Args:
        program_bytes: Bytes that the program asks for (``Program.allocated_temporary_bytes``), in
            pieces of unknown size.

    Examples:
        >>> kr.liveness.forget_free_memory(1000)  # less than 1 MiB
        0
    """
    if sys.platform != "linux":
        return 0
    import tensorflow as tf

    held: list[Any] = []  # until the end, so that no piece is found twice
    forgotten, piece = 0, min(program_bytes, _LARGEST)
    while piece >= _SMALLEST:
        resident = 0
        try:
            with tf.device("CPU:0"):
                # Empty leaves the memory untouched, so that new pages are told from used ones.
                held.append(tf.raw_ops.Empty(shape=[piece // _ELEMENT_BYTES], dtype=tf.complex128))
            resident = _forget(held[-1])
        except (tf.errors.ResourceExhaustedError, OSError):
            pass  # smaller pieces may be there
        forgotten += resident
        if resident < _FRESH * piece:  # no free piece was left, and the allocator took a new one
            piece //= 2
    return forgotten


def _forget(tensor: Any) -> int:
    """Drop the pages of an unused tensor; return how many of their bytes were resident."""
    import numpy as np

    data = np.frombuffer(memoryview(tensor), np.uint8)
    # Rounded inwards to whole pages: the bytes around them belong to other tensors.
    first = -(-data.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (data.ctypes.data + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    pages = (ctypes.c_ubyte * (length // mmap.PAGESIZE))()
    system = ctypes.CDLL(None, use_errno=True)
    where, size = ctypes.c_void_p(first), ctypes.c_size_t(length)
    if system.mincore(where, size, pages) or system.madvise(where, size, _DONT_NEED):
        raise OSError(ctypes.get_errno(), "the pages of a tensor cannot be released")
    return sum(page & 1 for page in pages) * mmap.PAGESIZE
