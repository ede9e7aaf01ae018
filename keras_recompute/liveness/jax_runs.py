"""What a compiled function of JAX takes while it runs: by a device's allocator, or by the process.

The allocator was tested with a double, and ran on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from ..backends import CPU
from ..errors import UnsupportedError
from .process import MeasuredMemory, process_memory

_PIECE = 2**20  # bytes of a row of the held array: a size may be more than an int32 holds


def run_and_measure(
    compiled: Any, specs: Any, *, reserved_bytes: int
) -> tuple[int | None, str | None]:
    """Run ``compiled`` twice; return the bytes of the second run, and who measured them.

    It is given zeros for its ``specs``, the positional and the keyword arguments.
    ``reserved_bytes`` is what the compiler says it needs. Both results are None where a GPU's
    allocator did not show them (``device_memory``). Raises UnsupportedError where the device does
    not say what its allocator gave.
    """
    device = jax.local_devices()[0]
    if device.platform != CPU and device.memory_stats() is None:
        raise UnsupportedError(
            'device="local" measures the memory of a run, which this '
            f"{device.platform.upper()} ({device.device_kind}) does not tell: leave it out to read "
            "the compiled program"
        )
    # Zeros in place of the state: what a step overwrites is no variable of the model.
    args, kwargs = jax.tree.map(_zeros, specs)
    # The first run makes the pages of the program and of its libraries resident.
    jax.block_until_ready(compiled(*args, **kwargs))
    args, kwargs = jax.block_until_ready(jax.tree.map(_zeros, specs))
    is_cpu = device.platform == CPU
    memory = process_memory() if is_cpu else device_memory(device, reserved_bytes=reserved_bytes)
    with memory as measured:
        results = jax.block_until_ready(compiled(*args, **kwargs))
    del results
    if measured.method is None:
        return None, None
    where = f"process ({measured.method})" if is_cpu else measured.method
    return measured.over_idle_bytes, f"the {where}"


@contextmanager
def device_memory(device: Any, *, reserved_bytes: int) -> Iterator[MeasuredMemory]:
    """Measure the peak bytes of the allocator of ``device`` while the block runs.

    JAX cannot reset the peak, so that a block which takes less than one before it would not show.
    Memory is therefore held while the block runs: as much as lies free below the peak, less half of
    ``reserved_bytes``, the bytes that the block is expected to take. If it takes more than that
    half, the peak rises. If not, the figures stay None.
    """
    measured = MeasuredMemory()
    before = device.memory_stats()
    peak = before["peak_bytes_in_use"]
    free_pieces = (peak - before["bytes_in_use"] - reserved_bytes // 2) // _PIECE
    held = None
    try:
        if free_pieces > 0:
            held = jax.numpy.zeros((free_pieces, _PIECE), "uint8", device=device)
            jax.block_until_ready(held)
    except jax.errors.JaxRuntimeError:  # free in parts alone
        pass
    idle = device.memory_stats()["bytes_in_use"]
    yield measured
    del held
    after = device.memory_stats()["peak_bytes_in_use"]
    if after > peak:
        measured.idle_bytes, measured.peak_bytes = idle, after
        measured.method = f"allocator of {device.device_kind}"


def _zeros(spec: Any) -> Any:
    is_spec = isinstance(spec, jax.ShapeDtypeStruct)
    return jax.numpy.zeros(spec.shape, spec.dtype) if is_spec else spec
