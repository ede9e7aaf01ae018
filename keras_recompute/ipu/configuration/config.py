"""``tensorflow.python.ipu.config``: the configuration, its checks, and the one in force (Graphcore: IPUConfig)."""

from __future__ import annotations

import copy
import logging
from typing import Any

from .device import check_device, devices_of
from .options import (
    OPTIONS,
    ROUNDED,
    DeviceConnectionType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from .refusals import refuse
from .tree import AttributeMetadata, Category

__all__ = [
    "AttributeMetadata",
    "DeviceConnectionType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "configure_ipu_system",
    "get_ipu_config",
    "reset_ipu_configuration",
]


class IPUConfig(Category):
    """How this machine's IPUs are to be used. Set attributes, then call ``configure_ipu_system()``.

    What becomes of each option here is in ``get_attribute_metadata(name).__doc__``, and in ``docs/ipu.md``.
    """

    def __init__(self) -> None:
        super().__init__(OPTIONS)

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Put this configuration in force, as it is now; see ``configure_ipu_system``."""
        configure_ipu_system(self, device)


_in_force: list[IPUConfig] = []
_DEFAULTS = IPUConfig()  # made once: it is read at every execution


def configure_ipu_system(config: IPUConfig, device: str = "cpu", reset_configuration: bool = True) -> None:
    """Put ``config`` in force, as it is now. One that is in force and differs is reset before, which is logged.

    Raises TypeError for what is no IPUConfig and for Poplar's options that are no strings, Exception where IPUs are
    selected in two ways, ValueError for values that cannot be, and UnsupportedError, a NotImplementedError, for options
    that would change results or memory and are not emulated. Floating-point behaviour that there is not is logged as a warning.
    """
    del device
    if not isinstance(config, IPUConfig):
        raise TypeError(f"configure_ipu_system takes an IPUConfig, not {config!r} of type {type(config).__name__}")
    values = config.options()
    for name, value in values.items():
        if isinstance(value, dict) and not all(isinstance(text, str) for pair in value.items() for text in pair):
            raise TypeError(f"{name!r} holds options of Poplar's, names and values as strings, but was given {value!r}")
    check_device(config)
    for option in OPTIONS:
        if option.refuses(values[option.name]):
            raise refuse(str(option.refused_as), f"{option.name} = {values[option.name]}")
    asked = [o.name for o in OPTIONS if o.becomes is ROUNDED and values[o.name] not in (o.default, False)]
    if asked:
        logging.getLogger(__name__).warning("%s: %s", ", ".join(asked), ROUNDED)
    if _in_force and reset_configuration and _in_force[-1].options() != values:
        logging.getLogger(__name__).warning("the IPU configuration in force is reset, because a different one is applied")
        reset_ipu_configuration()
    _in_force[:] = [copy.deepcopy(config)]


def reset_ipu_configuration() -> None:
    """Go back to no configuration."""
    _in_force.clear()


def get_ipu_config(session: Any = None) -> list[IPUConfig]:
    """Return the configuration in force, once per device. Raises RuntimeError where none is."""
    del session
    if not _in_force:
        raise RuntimeError("no IPU devices are configured: call IPUConfig().configure_ipu_system() first")
    return [copy.deepcopy(_in_force[-1]) for _ in devices()]


def current() -> IPUConfig:
    """Return the configuration in force, or the defaults, to be read. Not of Graphcore's API."""
    return _in_force[-1] if _in_force else _DEFAULTS


def devices() -> tuple[int, ...]:
    """Return the number of IPUs in each device of the configuration in force. Not of Graphcore's API."""
    return devices_of(current())
