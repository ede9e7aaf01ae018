"""Derivatives of the backward program, and of their backward programs in turn.

A partitioned function of level n is a forward and a backward program. Its backward program is again a function, of the
same ports and the gradients of the outputs, and it already stands in the joint graph: differentiated there, it makes the
partitioned function of level n + 1. Differentiating a copy would not do, because gradients that users wrote as closures
refer to the tensors of the graph they were called in.

What level n saved is at hand on level n + 1, so an impure value is still the one that the forward pass drew. Derivatives
flow through such values to the ports directly: none is asked for the saved values themselves.
"""

from __future__ import annotations

import dataclasses
import threading

from ..errors import UnsupportedError
from .graph_state import graph_state
from .joint import join
from .partition import Partition, partition
from .policies import save_nothing
from .purity import Purity


def derivative(part: Partition) -> Partition:
    """Return the backward program of ``part`` as a partitioned function that recomputes everything. Made once.

    Its ports are the differentiable ports of ``part``, the gradients of its outputs, then what else the backward program
    takes: the other ports, the saved values, the outputs at hand. Raises UnsupportedError if the second derivative needs
    the result of an operation that may not be run twice and that the first did not need.
    """
    # Two threads that ask together would both write into the joint graph.
    with graph_state(part.joint.trace.graph, "_keras_recompute_lock", threading.RLock):
        if not part.higher:
            part.higher.append(_derivative(part))
        return part.higher[0]


def _derivative(part: Partition) -> Partition:
    joint = part.joint
    trace = joint.trace
    # Differentiating a loop rewrites it in place: the programs must be copied out as they are now.
    part.forward.definition()
    part.gradient.definition()
    if part.begun:
        part.begun.definition()
    n = len(trace.differentiable)
    incoming = tuple(dy for dy in joint.output_gradients if dy is not None)
    known = part.backward.ports[len(trace.ports) : len(part.backward.ports) - len(incoming)]
    again = dataclasses.replace(
        trace,
        ports=(*trace.ports[:n], *((dy,) for dy in incoming), *trace.ports[n:], *known),
        differentiable=(*trace.differentiable, *incoming),
        outputs=tuple(g for g in joint.gradients if g is not None),
        structure=None,
        purity=Purity(trace.graph),
    )
    joined = join(again)
    for port in set(joined.refused) - set(joint.refused):
        raise LookupError(joined.refused[port])  # an operation that has a first derivative only
    # There is no forward pass of its own that could save anything: the backward program of ``part`` has been written.
    higher = partition(joined, save_nothing, replays_all=True)
    if higher.saved:
        impure = higher.saved[0].op
        raise UnsupportedError(
            f"a derivative of the backward pass needs the result of {impure.name!r} ({impure.type}), which may "
            f"not be run a second time and was not kept by the first pass. Mark it with checkpoint_name and save that "
            f"name, or take it as an argument."
        )
    return higher
