"""``tensorflow.python.ipu.utils``: random seeds, devices, and names of ``ipu.config``."""

from __future__ import annotations

import gc
import os
import zlib
from typing import Any

import keras

from ..configuration import config
from ..configuration.config import (
    DeviceConnectionType,
    IPUConfig,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
    configure_ipu_system,
    get_ipu_config,
    reset_ipu_configuration,
)
from ..configuration.device import FIRST_DEVICE, device_number
from ..pipeline.emulated_replicas import seed_replicas

__all__ = [
    "DeviceConnectionType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "configure_ipu_system",
    "get_ipu_config",
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_configuration",
    "reset_ipu_seed",
    "running_on_ipu_model",
]


def reset_ipu_seed(
    seed: int,
    device: str = FIRST_DEVICE,
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Restart the random generators of all layers from ``seed``.

    An IPU has one generator. Here each layer that draws has its own, which starts from ``seed`` and
    its name. So the numbers differ from an IPU's, but they are as repeatable. With
    ``experimental_identical_replicas`` all replicas draw the same numbers until the next reset.
    Raises TypeError unless ``seed`` is an int.
    """
    # One device holds all generators.
    del device, cpu_device
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(
            f"reset_ipu_seed(seed={seed!r}): give a whole number, not a {type(seed).__name__}"
        )
    seed_replicas(identically=bool(experimental_identical_replicas))
    # Keras accepts seeds of 32 bits.
    keras.utils.set_random_seed(seed & 0xFFFFFFFF)
    # Keras has no list of its generators: only the layers that draw refer to them.
    generators: list[Any] = [
        o for o in gc.get_objects() if isinstance(o, keras.random.SeedGenerator)
    ]
    for generator in generators:
        generator.state.assign(
            [seed & 0x7FFFFFFF, zlib.crc32(generator.state.path.encode()) & 0x7FFFFFFF]
        )


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Do nothing: variables are always initialised on the host."""
    del graph


def running_on_ipu_model() -> bool:
    """Return whether the environment selects Poplar's simulator.

    It does with ``TF_POPLAR_FLAGS=--use_ipu_model``.
    """
    return "--use_ipu_model" in os.environ.get("TF_POPLAR_FLAGS", "")


def get_num_of_ipus_in_device(ipu_device: str = FIRST_DEVICE, device: str = "cpu") -> int:
    """Return the number of IPUs that the configuration gives to ``ipu_device``.

    Raises ValueError for an unknown device.
    """
    del device
    counts = config.devices()
    return counts[device_number(ipu_device, counts)]
