"""A program of TensorFlow's as other compilers of XLA's take it."""

from __future__ import annotations

import re

_TRACE_NUMBER = re.compile(r"_[0-9]+(?=_const_[0-9]+__|__)")


def make_portable(serialized: bytes) -> bytes:
    """Return a ``xla.HloModuleProto`` before optimisation without what is TensorFlow's own.

    TensorFlow writes a copy of each result, for which StableHLO, in which programs travel, has no
    word. And it counts programs, and in the names of functions its traces: without these numbers
    two traces of one function are one program.
    """
    from ...seams.tensorflow.protos import HloModuleProto

    module = HloModuleProto.FromString(serialized)
    for instruction in (i for computation in module.computations for i in computation.instructions):
        if instruction.opcode == "copy":
            instruction.opcode = "reshape"
    for named in (module, *module.computations):
        named.name = _TRACE_NUMBER.sub("", named.name)
    module.ClearField("id")
    module.entry_computation_name = _TRACE_NUMBER.sub("", module.entry_computation_name)
    return module.SerializeToString(deterministic=True)
