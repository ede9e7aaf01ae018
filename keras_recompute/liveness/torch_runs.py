"""What a training step takes where it runs on PyTorch: by a GPU's allocator, or by the process.

The GPU part was tested with a double, and ran on an H200.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import torch

from ..seams.keras.layers import backend_variable
from .device_compilers.catalogue import find_device
from .keras_step import run_train_step
from .local_device import LOCAL, local_device
from .process import MeasuredMemory, process_memory
from .program import Program
from .torch_batches import value_of


def device_bytes(name: str | None) -> int | None:
    """Return the memory of the device called ``name``, which need not have a compiler here."""
    if name is None:
        return None
    return (local_device() if name == LOCAL else find_device(name)).memory_bytes or None


def measured(program: Program, model: Any, data: tuple[Any, ...]) -> Program:
    """Return ``program``, the record of a step of ``model``, with the memory of a run on ``data``.

    The step runs twice, and the second run counts, without parameters and data. All variables keep
    their values. A ``KerasTensor`` or a meta tensor in ``data`` stands for zeros.
    """
    batch = keras.tree.map_structure(value_of, data)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    has_gpu = torch.cuda.is_available()
    with _values_kept(variables):
        run_train_step(model, batch)  # which makes libraries resident
        with device_memory() if has_gpu else process_memory() as memory:
            run_train_step(model, batch)
    where = memory.method if has_gpu or memory.method is None else f"process ({memory.method})"
    by = None if where is None else f"the {where}"
    return replace(program, measured_bytes=memory.over_idle_bytes, measured_by=by)


@contextlib.contextmanager
def device_memory() -> Iterator[MeasuredMemory]:
    """Measure the peak bytes of the allocator of the current GPU while the block runs."""
    measured = MeasuredMemory()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    measured.idle_bytes = torch.cuda.memory_allocated()
    yield measured
    torch.cuda.synchronize()  # a GPU runs behind the program that asks
    measured.peak_bytes = torch.cuda.max_memory_allocated()
    measured.method = f"allocator of {torch.cuda.get_device_name()}"


@contextlib.contextmanager
def _values_kept(variables: Sequence[Any]) -> Iterator[None]:
    """Return a context behind which variables have the values that they had, and no gradients."""
    values = [backend_variable(variable) for variable in variables]
    before = [value.detach().clone() for value in values]
    try:
        yield
    finally:
        with torch.no_grad():
            for value, earlier in zip(values, before):
                value.copy_(earlier)
                value.grad = None
