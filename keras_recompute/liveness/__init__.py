"""Memory of compiled programs over their steps: read from the compiler, as plain records.

``profile`` compiles a function, or the training step of a Keras model, and returns a ``Program``; ``capture_fit`` is the
callback that reads the program ``fit`` runs; ``read_hlo_proto`` reads a program that was stored. Importing this loads no
TensorFlow.
"""

from .parameters import Parameter
from .process import ProcessMemory, process_memory
from .program import Buffer, Program, Step
from .read_xla import CompiledProgram, capture_fit, compile_program, profile, read_hlo_proto
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
    "capture_fit",
    "compile_program",
    "process_memory",
    "profile",
    "read_hlo_proto",
    "reconcile",
]
