"""Memory of compiled programs over their steps: read from the compiler, as plain records.

``profile`` compiles a function and returns a ``Program``; ``read_hlo_proto`` reads a program that was stored. Importing
this loads no TensorFlow.
"""

from .parameters import Parameter
from .process import ProcessMemory, process_memory
from .program import Buffer, Program, Step
from .read_xla import CompiledProgram, compile_program, profile, read_hlo_proto
from .reconcile import reconcile
from .timeline import Timeline

__all__ = [
    "Buffer",
    "CompiledProgram",
    "Parameter",
    "ProcessMemory",
    "Program",
    "Step",
    "Timeline",
    "compile_program",
    "process_memory",
    "profile",
    "read_hlo_proto",
    "reconcile",
]
