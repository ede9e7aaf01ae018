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

from ..seams.keras.layers import backend_variable
from .object_state import stateful_objects
from .trace import Trace


def frozen_ports(trace: Trace, objects: Iterable[Any]) -> frozenset[int]:
    """Return the ports of ``trace`` that are untrained variables; ``objects`` hold the layers."""
    ours = (
        variable
        for owner in stateful_objects(objects)
        for variable in getattr(owner, "variables", ())
    )
    # Not the variable's value, which in mixed precision is a tensor of another type.
    frozen = {
        id(backend_variable(v).handle)
        for v in ours
        if isinstance(v, keras.Variable) and not v.trainable
    }
    first = len(trace.arguments)
    return frozenset(
        first + number
        for number, v in enumerate(trace.variables)
        if not v.trainable or id(v.handle) in frozen
    )
