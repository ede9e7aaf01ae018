"""Memory of compiled programs over their steps, read from the compiler as plain records.

``profile`` compiles a function, or the training step of a Keras model, and returns a ``Program``.
``capture_fit`` is a callback that reads the program which ``fit`` runs. ``read_hlo_proto`` reads a
stored program, and ``read_popvision`` a report of the Poplar SDK. Importing this module does not
load TensorFlow.
"""

from .abstract_models import abstract
from .allocator import device_memory, forget_free_memory
from .captured_fit import capture_fit
from .compiled_program import CompiledProgram
from .device_compilers import Device, devices
from .parameters import Parameter
from .popvision_reader import read_popvision
from .process import MeasuredMemory, process_memory
from .profile_pop import IpuTarget, Profile, is_profile_pop, read_profile_pop, write_profile_pop
from .program import Buffer, Program, Step, Timeline
from .reconcile import reconcile
from .xla_compilation import compile_program, profile
from .xla_reader import read_hlo_proto

__all__ = [
    "Buffer",
    "CompiledProgram",
    "Device",
    "IpuTarget",
    "MeasuredMemory",
    "Parameter",
    "Profile",
    "Program",
    "Step",
    "Timeline",
    "abstract",
    "capture_fit",
    "compile_program",
    "device_memory",
    "devices",
    "forget_free_memory",
    "is_profile_pop",
    "process_memory",
    "profile",
    "read_hlo_proto",
    "read_popvision",
    "read_profile_pop",
    "reconcile",
    "write_profile_pop",
]
