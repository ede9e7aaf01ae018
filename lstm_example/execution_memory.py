"""The memory that an execution of the training program takes, on the device and in the process."""

from __future__ import annotations

import contextlib
from typing import Iterator

from keras_recompute.keras_backend import TENSORFLOW, current_backend
from keras_recompute.liveness.local_device import measure_host_and_device
from keras_recompute.liveness.process import process_memory

from .run_record import MeasuredMemory, RunRecord


@contextlib.contextmanager
def measure_execution(record: RunRecord) -> Iterator[None]:
    """Record the memory of the execution in the block, if it does not compile or is the only one.

    One execution is measured, and nothing is done around the others.
    """
    # The first execution compiles, which takes memory too.
    compiles = not record.seconds and record.options.updates > 1
    if record.measured or compiles:
        yield
        return
    if current_backend() != TENSORFLOW:
        with process_memory() as memory:
            yield
        record.measured = MeasuredMemory(memory.over_idle_bytes)
        return
    reserved_bytes = (record.program and record.program.allocated_temporary_bytes) or 0
    with measure_host_and_device(reserved_bytes=reserved_bytes) as (on_device, memory):
        yield
    record.measured = MeasuredMemory(memory.over_idle_bytes, on_device.over_idle_bytes)
