"""Higher-order derivatives: the backward program is differentiated, and its derivative in turn.

A partitioned function of order n is a forward and a backward program. Its backward program is again
a function, of the same ports and the gradients of the outputs, and is part of the joint graph.
Differentiated there, it makes the partitioned function of order n + 1. A copy could not be
differentiated, because gradients that users wrote as closures refer to the tensors of their graph.

What order n saved is given to order n + 1, so an impure value is still the one that the forward
pass drew. Derivatives go through such values to the ports directly: none is asked for the values
themselves.

A gradient for some outputs alone is made the same way, as for a model with a head that has no loss.
Zeros for the other outputs would not do: a variable that only they depend on has no gradient, and
zero times infinity is not zero.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Sequence

from ...errors import UnsupportedError
from ..capture.joint_graph import join
from ..capture.purity import Purity
from ..capture.trace import Port
from ..graph.dataflow import numbers_present, pick, present
from ..graph.graph_state import kept_with
from ..partition.partition import Partition, partition
from ..partition.program import program_between
from ..partition.stages import Stage
from ..policies import save_nothing


def derivative(part: Partition) -> Partition:
    """Return the backward program of ``part`` as a partitioned function that saves nothing.

    It is made once. Its ports are the differentiable ports of ``part``, the gradients of its
    outputs, then what else the backward program takes: the other ports, the saved values and the
    kept outputs. Raises UnsupportedError if the second derivative needs the result of an operation
    that may not run twice and that the first did not need.
    """
    with _writing_into_joint(part):
        if not part.derivatives:
            part.derivatives.append(_derivative(part))
        return part.derivatives[0]


def part_for_outputs(part: Partition, requested: Collection[int]) -> Partition:
    """Return ``part`` with a backward program for the outputs with the numbers ``requested``.

    Its ports are those of ``part``, then what else the backward program takes except gradients of
    outputs. It is made once for each set of outputs; it is ``part`` itself for all outputs with a
    gradient.
    """
    wanted = numbers_present(part.joint.output_gradients)
    key = tuple(filter(requested.__contains__, wanted))
    if len(key) == len(wanted):
        return part
    with _writing_into_joint(part):
        if key not in part.for_outputs:
            part.for_outputs[key] = _of_outputs(part, key)
        return part.for_outputs[key]


def _writing_into_joint(part: Partition) -> threading.RLock:
    """Return a lock for writing into the joint graph, which two threads may ask for together."""
    return kept_with(part.joint.trace.graph, "_keras_recompute_lock", threading.RLock)


def _of_outputs(part: Partition, requested: Sequence[int]) -> Partition:
    trace = part.joint.trace
    _copy_out(part)
    retraced = dataclasses.replace(
        trace,
        ports=(*trace.ports, *_known(part)),
        outputs=tuple(pick(trace.outputs, requested)),
        structure=None,
        purity=Purity(trace.graph),
    )
    joined = join(retraced, gradient_unused=part.joint.gradient_unused)
    found = partition(joined, save_nothing, replays_all=True)
    if found.saved:
        # Differentiated once more, a loop that draws numbers stacks other values than it has saved.
        return _with_zeros_for_the_others(part, joined.produced)
    gradients = dict(zip(requested, joined.output_gradients))
    placeholders = tuple(map(gradients.get, range(len(trace.outputs))))
    return dataclasses.replace(
        found, joint=dataclasses.replace(joined, output_gradients=placeholders)
    )


def _with_zeros_for_the_others(part: Partition, ports: Collection[int]) -> Partition:
    """Return ``part`` with the gradients of ``ports`` alone; it takes zeros for other outputs."""
    joint = part.joint.only(ports)
    backward = program_between(
        joint.trace, part.backward.ports, joint.gradient_tensors, replays=part.backward.replays
    )
    rows = tuple(joint.rows.values())
    return dataclasses.replace(
        part,
        joint=joint,
        backward=backward,
        stages=(Stage(backward),),
        rows=program_between(joint.trace, part.rows.ports, rows) if rows and part.rows else None,
        cheap=None,
        derivatives=[],
        for_outputs={},
        eager={},
        loops={},
    )


def _copy_out(part: Partition) -> None:
    """Make the definitions of the programs of ``part``.

    Differentiating a loop once more rewrites it in place.
    """
    stages = (stage.program for stage in part.stages)
    for program in present((part.forward, part.rows, *stages)):
        program.definition()


def _known(part: Partition) -> tuple[Port, ...]:
    """Return what the backward program takes between the ports and the output gradients."""
    ports, incoming = part.backward.ports, part.joint.incoming
    end = len(ports) - len(incoming)
    return ports[len(part.joint.trace.ports) : end]


def _derivative(part: Partition) -> Partition:
    joint = part.joint
    trace = joint.trace
    _copy_out(part)
    n = len(trace.differentiable)
    incoming = joint.incoming
    known = _known(part)
    retraced = dataclasses.replace(
        trace,
        ports=(*trace.ports[:n], *zip(incoming), *trace.ports[n:], *known),
        differentiable=(*trace.differentiable, *incoming),
        outputs=joint.gradient_tensors,
        structure=None,
        purity=Purity(trace.graph),
    )
    joined = join(retraced)
    for port in set(joined.no_gradient_reasons) - set(joint.no_gradient_reasons):
        raise LookupError(
            joined.no_gradient_reasons[port]
        )  # an operation that has a first derivative only
    # There is no forward pass of its own that could save anything: the backward program of ``part``
    # has been written.
    derivative_part = partition(joined, save_nothing, replays_all=True)
    if derivative_part.saved:
        impure = derivative_part.saved[0].op
        raise UnsupportedError(
            f"a derivative of the backward pass needs the result of {impure.name!r} "
            f"({impure.type}), which may not run twice and was not saved. Mark it with "
            "checkpoint_name and save that name, or pass it as an argument."
        )
    return derivative_part
