"""``tensorflow.python.ipu.config``: IPUConfig and the configuration in force.

Source: Graphcore, IPUConfig.
"""

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
    """The options of the machine's IPUs.

    Set attributes, then call ``configure_ipu_system()``. ``get_attribute_metadata(name).__doc__``
    and ``docs/ipu.md`` say which options have an effect here.
    """

    def __init__(self) -> None:
        super().__init__(OPTIONS)

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Apply a copy of this configuration; see ``configure_ipu_system``."""
        configure_ipu_system(self, device)


_in_force: list[IPUConfig] = []
# Constructed once, because it is read at every execution.
_DEFAULTS = IPUConfig()


def configure_ipu_system(
    config: IPUConfig, device: str = "cpu", reset_configuration: bool = True
) -> None:
    """Apply a copy of ``config``.

    If a different configuration is in force, it is reset first, which is logged. Floating-point
    behaviour that is not emulated is logged as a warning.

    Raises:
        TypeError: If ``config`` is no IPUConfig, or Poplar's options are not strings.
        Exception: If IPUs are selected in two ways.
        ValueError: For impossible values.
        UnsupportedError: A NotImplementedError, for options that would change results or memory and
            are not emulated.
    """
    del device
    if not isinstance(config, IPUConfig):
        raise TypeError(
            f"configure_ipu_system needs an IPUConfig, not {config!r} of type "
            f"{type(config).__name__}"
        )
    values = config.options()
    for name, value in values.items():
        if isinstance(value, dict) and not all(
            isinstance(text, str) for pair in value.items() for text in pair
        ):
            raise TypeError(f"{name!r} needs Poplar's options, a dict of strings, not {value!r}")
    check_device(config)
    for option in OPTIONS:
        if option.refuses(values[option.name]):
            raise refuse(str(option.refused_as), f"{option.name} = {values[option.name]}")
    rounded = [
        o.name for o in OPTIONS if o.becomes is ROUNDED and values[o.name] not in (o.default, False)
    ]
    if rounded:
        logging.getLogger(__name__).warning("%s: %s", ", ".join(rounded), ROUNDED)
    if _in_force and reset_configuration and _in_force[-1].options() != values:
        logging.getLogger(__name__).warning(
            "the current IPU configuration is replaced by a different one"
        )
        reset_ipu_configuration()
    # A script may change its object later without applying it again.
    _in_force[:] = [copy.deepcopy(config)]


def reset_ipu_configuration() -> None:
    """Remove the configuration in force."""
    _in_force.clear()


def get_ipu_config(session: Any = None) -> list[IPUConfig]:
    """Return a copy of the configuration in force for each device.

    Raises RuntimeError if there is none.
    """
    del session
    if not _in_force:
        raise RuntimeError(
            "no IPU devices are configured: call IPUConfig().configure_ipu_system() first"
        )
    return [copy.deepcopy(_in_force[-1]) for _ in devices()]


def current() -> IPUConfig:
    """Return the configuration in force, or the defaults; read only.

    An addition to Graphcore's API.
    """
    return _in_force[-1] if _in_force else _DEFAULTS


def devices() -> tuple[int, ...]:
    """Return the number of IPUs in each device of the configuration in force.

    An addition to Graphcore's API.
    """
    return devices_of(current())
