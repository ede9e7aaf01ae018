"""Effects of custom gradients, and what they alone read from outside of the function.

A custom gradient may print or assign a variable. It may read a variable that the forward pass does
not read, such as the strength of a gradient reversal. Differentiation adds these operations after
the trace has found the inputs of the graph.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import tensorflow as tf

from ..graph.dataflow import port_refs
from .purity import Purity
from .trace import Trace


def with_handles_of_gradients(trace: Trace, added: Collection[tf.Operation]) -> Trace:
    """Return ``trace`` with handles for what only the backward operations ``added`` need.

    These are tensors from outside that the forward pass does not read, and variables that the
    forward pass only reads and the backward pass assigns.
    """
    outside = {internal.ref(): external for external, internal in trace.graph.captures}
    new = outside.keys() - port_refs([*trace.ports, *trace.handles])
    if not new and all(map(trace.purity.is_pure, added)):
        return trace
    purity, ports, value_specs = Purity(trace.graph), list(trace.ports), dict(trace.value_specs)
    for number, port in enumerate(ports):
        for tensor in filter(purity.is_assigned, port):
            ports[number] = ()
            new.add(tensor.ref())
            del value_specs[tensor.ref()]
    handles = []
    for reference, external in outside.items():
        if reference in new:
            handles.append((reference.deref(), external))
    return replace(
        trace,
        ports=tuple(ports),
        handles=(*trace.handles, *handles),
        purity=purity,
        value_specs=value_specs,
    )


def effects_among(added: Collection[tf.Operation], trace: Trace) -> tuple[tf.Operation, ...]:
    """Return those of the operations ``added`` that have effects, in the order of their creation.

    A program is written in this order, and TensorFlow runs the effects of a function in the order
    in which they are written.
    """
    effects = []
    for operation in trace.graph.get_operations():
        if operation in added and not trace.purity.is_pure(operation):
            effects.append(operation)
    return tuple(effects)
