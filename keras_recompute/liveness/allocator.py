"""TensorFlow's allocators: what that of a GPU states by itself, and what that of the CPU keeps,
given back.

On a CPU, TensorFlow's allocator returns nothing to the system: what a tensor or a program took
stays resident, and is used again. A process then does not grow where a program runs in such memory,
and its memory cannot be seen from outside: of a program with 169 MiB of temporaries nothing showed,
because the microbatches that it was fed had been stacked in as much (measured with TensorFlow
2.21). ``forget_free_memory`` has the system take the pages away while nobody uses them.

Not run on a GPU: none was at hand; tested with a double.
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
_DONT_NEED = 4  # madvise: the next to touch these pages finds zeros in new ones
_FRESH = 0.02  # a piece of which less is resident was never used


@contextmanager
def device_memory() -> Iterator[MeasuredMemory]:
    """Measure the peak bytes of the first GPU's allocator while the block runs; without a GPU the
    figures stay None.

    The program's own parameters and data count as idle where they are on the GPU before the block.

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
    """Give the system back what TensorFlow's CPU allocator keeps and a program could run in; return
    how many bytes.

    Free memory is looked for in pieces of all of the program's bytes, of half of them, and so on
    down to 1 MiB. Nothing happens where the system is not Linux, or where the allocator gives
    nothing.

    Args:
        program_bytes: What the program asks for (``Program.allocated_temporary_bytes``), in pieces
            that are not known.

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
                held.append(tf.raw_ops.Empty(shape=[piece // _ELEMENT_BYTES], dtype=tf.complex128))
            resident = _forget(held[-1])
        except (tf.errors.ResourceExhaustedError, OSError):
            pass  # smaller pieces may be there
        forgotten += resident
        if resident < _FRESH * piece:  # no free piece was left, and the allocator took a new one
            piece //= 2
    return forgotten


def _forget(tensor: Any) -> int:
    """Have the system take away the whole pages of a tensor that nobody reads; return how many
    bytes were resident.
    """
    import numpy as np

    data = np.frombuffer(memoryview(tensor), np.uint8)
    first = -(-data.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (data.ctypes.data + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    pages = (ctypes.c_ubyte * (length // mmap.PAGESIZE))()
    system = ctypes.CDLL(None, use_errno=True)
    where, size = ctypes.c_void_p(first), ctypes.c_size_t(length)
    if system.mincore(where, size, pages) or system.madvise(where, size, _DONT_NEED):
        raise OSError(ctypes.get_errno(), "the pages of a tensor cannot be given back")
    return sum(page & 1 for page in pages) * mmap.PAGESIZE
