"""Compilers of devices that are not installed here, and the catalogue of these devices."""

from .catalogue import Device, devices, find_device
from .compiler import CompiledForDevice, compile_for, require_compiler

__all__ = [
    "CompiledForDevice",
    "Device",
    "compile_for",
    "devices",
    "find_device",
    "require_compiler",
]
