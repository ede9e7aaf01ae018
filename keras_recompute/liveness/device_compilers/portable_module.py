"""Conversion of TensorFlow's XLA modules to a form that other XLA compilers accept."""

from __future__ import annotations

import re

_TRACE_NUMBER = re.compile(r"_[0-9]+(?=_const_[0-9]+__|__)")


def make_portable(serialized: bytes) -> bytes:
    """Return an unoptimized ``xla.HloModuleProto`` without what is specific to TensorFlow.

    Copies become reshapes. Numbers of traces are removed from names, so that two traces of one
    function are one program to the cache.
    """
    from ...seams.tensorflow.protos import HloModuleProto

    module = HloModuleProto.FromString(serialized)
    for instruction in (i for computation in module.computations for i in computation.instructions):
        # TensorFlow copies each result. StableHLO, in which programs are passed on, has no copy.
        if instruction.opcode == "copy":
            instruction.opcode = "reshape"
    for named in (module, *module.computations):
        named.name = _TRACE_NUMBER.sub("", named.name)
    module.ClearField("id")
    module.entry_computation_name = _TRACE_NUMBER.sub("", module.entry_computation_name)
    return module.SerializeToString(deterministic=True)
