"""Devices that are not here: which there are, and their own compilers, asked what a program takes
there.
"""

from .catalogue import Device, devices, find_device
from .compiler import CompiledForDevice, compile_for

__all__ = ["CompiledForDevice", "Device", "compile_for", "devices", "find_device"]
