"""The local device: its memory, and what a program takes of it while it runs."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterable, Iterator

import numpy as np

from ..backends import CPU, GPU
from ..errors import UnsupportedError
from ..keras_backend import JAX, TORCH, current_backend
from .allocator import device_memory, forget_free_memory
from .device_compilers import Device, find_device, require_compiler
from .process import MeasuredMemory, pieces_mapped, process_memory

LOCAL = "local"
_MEMORY, _CONTROL_GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def device_named(name: str) -> Device:
    """Return the device called ``name``: a described one, or with LOCAL the local one.

    Raises InvalidArgumentError for an unknown name, DeviceError if its compiler is missing, and
    UnsupportedError for LOCAL on PyTorch, where steps are recorded and neither compiled nor run.
    """
    on_torch = current_backend() == TORCH
    if name == LOCAL:
        if on_torch:
            raise UnsupportedError(
                "device='local' is the device that a program is compiled for, and on Keras's "
                "PyTorch backend none is compiled: give bytes, or a device of kr.liveness.devices()"
            )
        return local_device()
    device = find_device(name)
    if not on_torch:
        require_compiler(device)  # before anything is traced for it
    return device


def local_device() -> Device:
    """Return the first GPU that Keras's backend sees, with its usable memory; else this machine."""
    if current_backend() == JAX:
        return _local_device_of_jax()
    if current_backend() == TORCH:
        return _local_device_of_torch()
    import tensorflow as tf

    logical = tf.config.list_logical_devices("GPU")
    if not logical:
        return Device(LOCAL, "the CPU here", CPU, machine_bytes() or 0, ())
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    # Only a session reports the memory limit that TensorFlow has set for itself.
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        sizes = {
            device.name: device.memory_limit_bytes
            for device in session.list_devices()
            if device.device_type == "GPU"
        }
    name = logical[0].name.rsplit("/", 1)[-1]
    memory_bytes = next((size for full, size in sizes.items() if full.endswith(name)), 0)
    return Device(LOCAL, details.get("device_name", "the GPU here"), GPU, memory_bytes, ())


def _local_device_of_jax() -> Device:
    import jax

    device = jax.local_devices()[0]
    if device.platform == CPU:
        return Device(LOCAL, "the CPU here", CPU, machine_bytes() or 0, ())
    memory_bytes = int((device.memory_stats() or {}).get("bytes_limit", 0))
    return Device(LOCAL, device.device_kind, device.platform, memory_bytes, ())


def _local_device_of_torch() -> Device:
    import torch

    if not torch.cuda.is_available():
        return Device(LOCAL, "the CPU here", CPU, machine_bytes() or 0, ())
    title, memory_bytes = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1]
    return Device(LOCAL, title, GPU, memory_bytes, ())


def machine_bytes() -> int | None:
    """Return this machine's memory with swap, or the control group's limit, or None."""
    try:
        figures = dict(re.findall(r"^(\w+): +([0-9]+) kB$", _MEMORY.read_text(), re.MULTILINE))
        # The kernel counts in KiB, although it writes kB.
        there = 1024 * (int(figures["MemTotal"]) + int(figures["SwapTotal"]))
    except (OSError, KeyError):
        try:
            there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        # Windows lacks sysconf, and other systems may lack these names.
        except (AttributeError, ValueError, OSError):
            return None
    try:
        return min(there, int(_CONTROL_GROUP.read_text()))
    except (OSError, ValueError):  # no control group, or one without a bound, which says "max"
        return there


def zeros_for_specs(nest: Any) -> Any:
    """Return ``nest`` with zeros in place of each ``tf.TensorSpec``."""
    import tensorflow as tf

    return tf.nest.map_structure(
        lambda leaf: tf.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, tf.TensorSpec) else leaf,
        nest,
    )


@contextmanager
def preserving_values(variables: Iterable[Any]) -> Iterator[None]:
    """Restore the values of ``variables`` after the block.

    Layers that run as in training change statistics and seeds.
    """
    # Copied, since numpy() may return the memory of the variable itself.
    before = [(variable, np.array(variable.numpy())) for variable in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


@contextmanager
def measure_host_and_device(
    *, reserved_bytes: int
) -> Iterator[tuple[MeasuredMemory, MeasuredMemory]]:
    """Measure the memory of a GPU's allocator and of the process while the block runs.

    Either may be unknown. ``reserved_bytes`` is what a program asked for that ran before: free
    memory of that size is released first.
    """
    forget_free_memory(reserved_bytes)
    with device_memory() as on_device, process_memory() as in_process:
        yield on_device, in_process


def run_and_measure(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    variables: Any,
    *,
    reserved_bytes: int,
) -> tuple[int | None, str | None]:
    """Run a compiled ``tf.function`` twice; return the bytes of the second run and their source.

    Parameters and data are not counted. ``variables`` keep their values. A ``tf.TensorSpec`` among
    the arguments stands for zeros. ``reserved_bytes`` is what the compiler says the program needs.
    """
    import tensorflow as tf

    args, kwargs = zeros_for_specs((args, kwargs))
    # What the first run frees would be taken by the second, and not show.
    with preserving_values(variables), pieces_mapped():
        function(*args, **kwargs)  # the first run compiles, which takes memory too
        with measure_host_and_device(reserved_bytes=reserved_bytes) as (on_device, in_process):
            results = function(*args, **kwargs)
            tf.test.experimental.sync_devices()  # a GPU runs behind the program that asks
        del results
    if on_device.over_idle_bytes is not None:
        return on_device.over_idle_bytes, f"the {on_device.method}"
    return in_process.over_idle_bytes, f"the process ({in_process.method})"
