"""Frozen variables among the inputs of a function: those of frozen layers, and non-trainable ones.

TensorFlow differentiates for them like for any other variable, and may be asked for their
gradients; Keras asks for none. So a section is differentiated for all that it reads, and compilers
drop unused gradients. They cannot drop one that back-propagation was told to wait for (see
``passes.scheduling``): a frozen kernel would cost a product.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from ...seams.keras.layers import backend_variable
from ..calls.object_state import stateful_objects
from ..capture.trace import Trace


def frozen_ports(trace: Trace, objects: Iterable[Any]) -> frozenset[int]:
    """Return the ports of ``trace`` that are untrained variables; ``objects`` hold the layers."""
    ours: list[Any] = []
    for owner in stateful_objects(objects):
        ours += getattr(owner, "variables", ())
    # Not the variable's value, which in mixed precision is a tensor of another type.
    frozen = set()
    for variable in ours:
        if isinstance(variable, keras.Variable) and not variable.trainable:
            frozen.add(id(backend_variable(variable).handle))
    first = len(trace.arguments)
    ports = set()
    for port, variable in enumerate(trace.variables, first):
        if not variable.trainable or id(variable.handle) in frozen:
            ports.add(port)
    return frozenset(ports)
