"""Devices that can be compiled for without having one, and their descriptions for the compiler.

A GPU is described by figures that its driver reports, which XLA reads to schedule and tile. They
are those of OpenXLA's description where one is published, else of NVIDIA's data sheets. The memory
is what CUDA reports, rounded down where that was not published. A TPU is known to its compiler by
name. The memory of its chip is that of Google's documentation, and the compiler itself refuses what
does not fit.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import NamedTuple

from ...backends import GPU, TPU
from ...errors import InvalidArgumentError

_GIB = 2**30


@dataclass(frozen=True)
class Device:
    """A device that a program can be compiled for.

    Attributes:
        name: The value of ``device=``.
        title: Its maker's name for it.
        backend: ``"gpu"`` or ``"tpu"``.
        memory_bytes: Memory for a program and its data.
        description: Options for its compiler.
        capability: The compute capability of a GPU; None for a TPU.
        slices: Names of groups of these devices by their number; of a GPU any number makes one.

    Examples:
        >>> [device.title for device in kr.liveness.devices() if device.memory_bytes > 128 * 2**30]
        ['NVIDIA H200', 'NVIDIA B200']
    """

    name: str
    title: str
    backend: str
    memory_bytes: int
    description: tuple[tuple[str, str], ...] = field(repr=False)
    capability: tuple[int, int] | None = field(default=None, repr=False)
    slices: tuple[tuple[int, str], ...] = field(default=(), repr=False)


class _Generation(NamedTuple):
    """Figures that all GPUs of one compute capability share, per core."""

    capability: tuple[int, int]
    units: int
    threads: int
    shared: int


def _gpu(
    generation: _Generation,
    name: str,
    title: str,
    memory_bytes: int,
    *,
    cores: int,
    cache: int,
    gigahertz: float,
    bandwidth: int,
) -> Device:
    """Describe a GPU; ``bandwidth`` is in bytes per second."""
    capability, units, threads, shared = generation
    of_one_block = shared - 1024 if capability >= (8, 0) else shared
    config = f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }}
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: {threads}
  shared_memory_per_block: 49152 shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {of_one_block}
  core_count: {cores} fpus_per_core: {units}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {cache} clock_rate_ghz: {gigahertz}
  device_memory_size: {memory_bytes}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{title}"
"""
    return Device(
        name,
        title,
        GPU,
        memory_bytes,
        (("platform", "cuda"), ("config", config)),
        capability,
    )


# Chips side by side, as Google sells them.
_SQUARES = (1, "1x1"), (4, "2x2"), (8, "2x4"), (16, "4x4"), (32, "4x8"), (64, "8x8")
_CUBES = (1, "2x2x1"), (4, "2x2x1"), (8, "2x2x2"), (16, "2x2x4"), (32, "2x4x4"), (64, "4x4x4")


def _tpu(
    name: str,
    title: str,
    gibibytes: int,
    *,
    accelerator: str,
    slices: tuple[tuple[int, str], ...] = _SQUARES,
    chip: str = "default",
) -> Device:
    """Describe a chip; ``megacore`` joins its two cores, which ``accelerator`` counts."""
    description = ("platform", "tpu"), ("accelerator", accelerator), ("chip", chip)
    return Device(name, title, TPU, gibibytes * _GIB, description, slices=slices)


_TURING = _Generation((7, 5), units=64, threads=1024, shared=65536)
_AMPERE = _Generation((8, 0), units=64, threads=2048, shared=167936)
_AMPERE_86 = _Generation((8, 6), units=128, threads=1536, shared=102400)
_ADA = _Generation((8, 9), units=128, threads=1536, shared=102400)
_HOPPER = _Generation((9, 0), units=128, threads=2048, shared=233472)
_BLACKWELL = _Generation((10, 0), units=128, threads=2048, shared=233472)

_DEVICES = {
    device.name: device
    for device in (
        _gpu(_TURING, "t4", "NVIDIA T4", 15_843_721_216,
             cores=40, cache=4_194_304, gigahertz=1.59, bandwidth=320_000_000_000),
        _gpu(_ADA, "l4", "NVIDIA L4", 22 * _GIB,
             cores=58, cache=50_331_648, gigahertz=2.04, bandwidth=300_000_000_000),
        _gpu(_AMPERE_86, "a10", "NVIDIA A10", 22 * _GIB,
             cores=72, cache=6_291_456, gigahertz=1.695, bandwidth=600_000_000_000),
        _gpu(_AMPERE, "a100-40", "NVIDIA A100-SXM4-40GB", 42_331_013_120,
             cores=108, cache=41_943_040, gigahertz=1.41, bandwidth=1_555_200_000_000),
        _gpu(_AMPERE, "a100-80", "NVIDIA A100-SXM4-80GB", 85_100_068_864,
             cores=108, cache=41_943_040, gigahertz=1.41, bandwidth=2_039_040_000_000),
        _gpu(_HOPPER, "h100", "NVIDIA H100 80GB HBM3", 84_942_979_072,
             cores=132, cache=52_428_800, gigahertz=1.98, bandwidth=3_352_320_000_000),
        _gpu(_HOPPER, "h200", "NVIDIA H200", 139 * _GIB,
             cores=132, cache=52_428_800, gigahertz=1.98, bandwidth=4_800_000_000_000),
        _gpu(_BLACKWELL, "b200", "NVIDIA B200", 191_514_411_008,
             cores=148, cache=132_644_864, gigahertz=1.965, bandwidth=7_672_320_000_000),
        _gpu(_ADA, "rtx4090", "NVIDIA GeForce RTX 4090", 25_393_692_672,
             cores=128, cache=75_497_472, gigahertz=2.52, bandwidth=1_008_000_000_000),
        _tpu("v4", "TPU v4", 32, accelerator="v4", slices=_CUBES, chip="megacore"),
        _tpu("v5e", "TPU v5e", 16, accelerator="v5litepod"),
        _tpu("v5p", "TPU v5p", 95, accelerator="v5p", slices=_CUBES, chip="megacore"),
        _tpu("v6e", "TPU v6e", 32, accelerator="v6e"),
    )
}  # fmt: skip


def devices() -> tuple[Device, ...]:
    """Return the devices that ``profile(..., device=name)`` compiles for, GPUs before TPUs.

    Examples:
        >>> [device.name for device in kr.liveness.devices() if device.backend == "tpu"]
        ['v4', 'v5e', 'v5p', 'v6e']
        >>> kr.liveness.devices()[0].title, kr.liveness.devices()[0].memory_bytes
        ('NVIDIA T4', 15843721216)
    """
    return tuple(_DEVICES.values())


def find_device(name: str) -> Device:
    """Return the device called ``name``. Raises InvalidArgumentError that lists all devices."""
    found = _DEVICES.get(str(name).lower())
    if found is None:
        nearest = difflib.get_close_matches(str(name).lower(), _DEVICES, n=1)
        meant = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        raise InvalidArgumentError(
            f"there is no device {name!r}{meant}: give one of {', '.join(_DEVICES)}"
        )
    return found
