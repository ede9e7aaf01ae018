"""What gradient functions do beside computing, and what they alone read from outside.

A gradient that a user writes may print or assign a variable. It may read a variable that the
forward pass never reads, as a gradient reversal does its strength. Differentiation adds such
operations when the graph has its inputs and control dependencies already.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import tensorflow as tf

from ..graph.dataflow import port_refs
from .purity import Purity
from .trace import Trace


def with_handles_of_gradients(trace: Trace, added: Collection[tf.Operation]) -> Trace:
    """Return ``trace`` with handles for what the operations ``added`` read or assign.

    These are tensors from outside that the forward pass does not read, and variables that were
    only read until then.
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
    """Return those of the operations ``added`` that do more than compute, as they were written.

    Programs are copied in this order, which TensorFlow keeps within functions.
    """
    effects = []
    for operation in trace.graph.get_operations():
        if operation in added and not trace.purity.is_pure(operation):
            effects.append(operation)
    return tuple(effects)
