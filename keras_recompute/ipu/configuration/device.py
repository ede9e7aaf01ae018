"""The devices of a configuration: their numbers of IPUs and their memory.

Source: Graphcore, IPUConfig and hardware.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...liveness import IpuTarget

KIB = 1024
FIRST_DEVICE = "/device:IPU:0"
# ipu_model.version: tiles, KiB per tile. Mk1 is the GC2, Mk2 the GC200 and the Bow.
IPU_VERSIONS = {"ipu1": (1216, 256), "ipu2": (1472, 624)}
# A system of 16 IPUs, numbered as Graphcore's device listing does: each alone, then pairs, fours,
# eights and all of them.
_IPUS_BY_NUMBER = [1] * 16 + [2] * 8 + [4] * 4 + [8] * 2 + [16]


def devices_of(config: Any) -> tuple[int, ...]:
    """Return the number of IPUs in each device; by default one device with one IPU."""
    counts, numbers = _listed(config.auto_select_ipus), _listed(config.select_ipus)
    if numbers:
        return tuple(map(_IPUS_BY_NUMBER.__getitem__, numbers))
    return tuple(counts) or (1,)


def device_number(name: str, devices: Sequence[int]) -> int:
    """Return the number in a device's name, such as ``/device:IPU:1``.

    Raises ValueError if it is not among ``devices``.
    """
    number = name.rpartition(":")[2]
    if not number.isdigit() or int(number) >= len(devices):
        raise ValueError(
            f"{name!r} is not one of the {len(devices)} configured devices, which begin at "
            f"{FIRST_DEVICE!r}: set auto_select_ipus"
        )
    return int(number)


def replicas_on(ipus: int, used: int) -> int:
    """Return how many replicas a device of ``ipus`` IPUs holds if each uses ``used``.

    A replica takes 1, 2, 4, 8 or 16 IPUs if ``used`` does not divide ``ipus``, as devices have. If
    the device has fewer IPUs than ``used``, there is one replica: all stages run on this machine in
    any case. Raises ValueError if no number divides. Source: Graphcore, replication.
    """
    # Devices of 1, 2, 4, 8 or 16 IPUs exist, so a replica may take more than it uses.
    per_replica = next((n for n in (used, 1 << (used - 1).bit_length()) if ipus % n == 0), None)
    if per_replica is None and ipus > used:
        raise ValueError(
            f"{ipus} IPUs do not hold whole copies of a model that uses {used}: set "
            f"auto_select_ipus to a multiple of {used}"
        )
    return ipus // per_replica if per_replica else 1


def target_of(config: Any, *, device: int = 0, replicas: int = 1) -> IpuTarget:
    """Return the IPUs, tiles and bytes that one replica has on device ``device``.

    ``replicas`` is the number of replicas that share the device.
    """
    tiles, kib_per_tile = IPU_VERSIONS[config.ipu_model.version]
    return IpuTarget(
        ipus=devices_of(config)[device] // replicas,
        tiles_per_ipu=config.ipu_model.tiles_per_ipu or tiles,
        bytes_per_tile=kib_per_tile * KIB,
        replicas=replicas,
    )


def check_device(config: Any) -> None:
    """Raise Exception if IPUs are selected in two ways, ValueError for impossible devices."""
    counts, numbers = _listed(config.auto_select_ipus), _listed(config.select_ipus)
    on_model = "--use_ipu_model" in os.environ.get("TF_POPLAR_FLAGS", "")
    if counts and numbers:
        raise Exception("both auto_select_ipus and select_ipus are set: set one of them")
    if numbers and on_model:
        raise Exception(
            "select_ipus chooses hardware, but TF_POPLAR_FLAGS asks for the IPU model: set "
            "auto_select_ipus instead"
        )
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"select_ipus={config.select_ipus!r} names a device twice: name it once")
    if any(not 0 <= number < len(_IPUS_BY_NUMBER) for number in numbers):
        raise ValueError(
            f"select_ipus={config.select_ipus!r} names an unknown device: give numbers from 0 to "
            f"{len(_IPUS_BY_NUMBER) - 1}"
        )
    if any(count < 1 for count in counts):
        raise ValueError(
            f"auto_select_ipus={config.auto_select_ipus!r}: give each device at least one IPU"
        )

    model, tiles = config.ipu_model, config.io_tiles
    if model.version not in IPU_VERSIONS:
        raise ValueError(
            f"ipu_model.version={model.version!r} is unknown: give one of {', '.join(IPU_VERSIONS)}"
        )
    if model.tiles_per_ipu < 0:
        raise ValueError(
            f"ipu_model.tiles_per_ipu={model.tiles_per_ipu}: give a number of tiles, or 0 for the "
            "number that the version has"
        )
    if not 0 <= tiles.num_io_tiles < target_of(config).tiles_per_ipu:
        raise ValueError(
            f"io_tiles.num_io_tiles={tiles.num_io_tiles} leaves none of the "
            f"{target_of(config).tiles_per_ipu} tiles for the model: lower it"
        )
    if tiles.place_ops_on_io_tiles and not tiles.num_io_tiles:
        raise ValueError(
            "io_tiles.place_ops_on_io_tiles=True needs I/O tiles: set io_tiles.num_io_tiles above 0"
        )
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    if group < 1:
        raise ValueError(
            f"norms.experimental.distributed_batch_norm_replica_group_size={group}: give at least 1"
        )
    if group > 1 and tiles.num_io_tiles:
        raise ValueError(
            "norms.experimental.distributed_batch_norm_replica_group_size cannot be combined "
            "with io_tiles.num_io_tiles: leave out one of the two"
        )
    connection = config.device_connection
    if connection.type.name in ("PRE_COMPILE", "NEVER") and not connection.version:
        raise ValueError(
            f"device_connection.type {connection.type.name} needs device_connection.version: set it"
        )
    processes = config.experimental.multi_replica_distribution
    if processes.process_count and not 0 <= processes.process_index < processes.process_count:
        raise ValueError(
            f"experimental.multi_replica_distribution.process_index={processes.process_index} is "
            f"not below process_count={processes.process_count}: give a number from 0 on"
        )


def _listed(selection: Any) -> list[int]:
    """Return a selection, an int or a sequence of them, as a list."""
    return [selection] if isinstance(selection, int) else list(selection)
