"""Step 5 of the engine for equal sections: the two programs once, as the bodies of two loops.

Sections that differ at most in where they slice their input share their programs. So program size,
compile time and peak do not grow with their number (Poplar calls this outlining). A compiler moves
no work out of a loop's body, so nothing of one section outlives it except

* *carried states*, which one section passes to the next: the checkpoints;
* *saved* values, where the policy or the purity rule asks for them, per section;
* requested outputs: those of all sections concatenated or stacked, or the last one alone.

The loops slice the inputs themselves. A slice taken outside would be alive from the forward to the
backward pass. The gradient of a slice taken by the section would be as large as the whole input in
every turn.

Source: ``jax.lax.scan``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..capture.custom_vjp import Gradients, Tensors, custom_vjp_twice, differentiable_vjp
from ..capture.missing_gradients import raising_gradient
from ..emit.eager_functions import CompiledFunctions, EagerFunction
from ..emit.early_work import note_call
from ..graph.captures import capture_all
from ..partition.partition import Partition
from .scan_gradients import slice_values, sparse_ports
from .scan_loops import ScanLoops
from .scan_roles import (
    Carry,
    Constant,
    FinalOutput,
    Request,
    Role,
    Scanned,
    StackedOutput,
    section_spec,
)
from .slice_store import Dimension

__all__ = [
    "Carry",
    "Constant",
    "FinalOutput",
    "Request",
    "Role",
    "Scanned",
    "StackedOutput",
    "can_scan",
    "scan_sections",
    "section_spec",
]


def scan_sections(
    part: Partition,
    arguments: Sequence[tf.Tensor],
    *,
    count: int,
    roles: Sequence[Role],
    requests: Sequence[Request],
    batch: Dimension,
    name: str,
    keeps_states: bool = False,
) -> list[tf.Tensor]:
    """Write ``count`` consecutive calls of the partitioned section as one loop.

    Returns one tensor per request. ``arguments`` has one tensor per argument of the section: the
    first section's value for a Carry, the whole tensor for a Scanned one. ``batch`` is the size of
    first dimensions that are not known while tracing (see ``can_scan``). With ``keeps_states`` the
    states between sections are sources of a replay, if the loop is in a function that is itself
    recomputed (see ``annotations.replay_source``).
    """
    if tf.executing_eagerly():
        function = _eager_loop(part, count, tuple(roles), tuple(requests), batch, name)
        return function(
            raising_gradient(part.joint.trace.values(arguments), part.joint.no_gradient_reasons)
        )
    loop = ScanLoops(
        part, count, tuple(roles), tuple(requests), batch, name, keeps_states=keeps_states
    )
    values = capture_all(part.joint.trace.values(arguments))
    values = raising_gradient(values, part.joint.no_gradient_reasons)
    results = custom_vjp_twice(
        lambda: loop.results(values),
        loop.gradient,
        loop.recompute_primal,
        inputs=values,
        count=len(requests),
        name=name,
        tells_apart=True,
    )
    note_call(results)
    return results


def _eager_loop(
    part: Partition,
    count: int,
    roles: tuple[Role, ...],
    requests: tuple[Request, ...],
    batch: Dimension,
    name: str,
) -> EagerFunction:
    """Return the loop as a function that is compiled once for a partition."""
    key = count, roles, requests, batch, name
    if key not in part.loops:
        loop = ScanLoops(part, count, roles, requests, batch, name)

        compiled = CompiledFunctions()

        def gradient(
            inputs: Tensors,
            kept: Tensors,
            output_gradients: Sequence[Any],
            requested: frozenset[int],
        ) -> Gradients:
            # The eager function gives what is stored for the gradient before the results.
            first = len(kept) - len(requests)
            made = [*kept[first:], *kept[:first]]
            incoming = {n: output_gradients[n] for n in sorted(requested)}
            n_inputs, n_known = len(inputs), len(inputs) + len(made)

            def write(given: Tensors) -> list[Any]:
                here = dict(zip(incoming, given[n_known:]))
                dys = [here.get(n) for n in range(len(requests))]
                known = given[:n_inputs], given[n_inputs:n_known]
                return list(
                    differentiable_vjp(loop.gradient, loop.recompute_primal, *known, dys, name=name)
                )

            return compiled.run(requested, write, [*inputs, *made, *incoming.values()])

        every = range(len(requests))
        part.loops[key] = EagerFunction(
            loop.results, gradient, outputs=len(requests), kept_by_caller=every, name=name
        )
    return part.loops[key]


def can_scan(part: Partition, roles: Sequence[Role] = ()) -> bool:
    """Whether a loop can store what the section passes on.

    It stores plain tensors, unknown at most in their first dimension. The first section must also
    take the type that the others are given, by ``roles``: in mixed precision it may take the
    model's float32 inputs and pass on bfloat16.
    """
    trace = part.joint.trace
    for port, role in enumerate(roles):
        if isinstance(role, Carry):
            carried_in, carried_out = trace.differentiable[port], trace.outputs[role.output]
            if carried_in.dtype != carried_out.dtype:
                return False
    # Of what all sections share, each adds slices to a sparse gradient: as many as are known.
    if not all(slice_values(part, p).shape.is_fully_defined() for p in sparse_ports(part, roles)):
        return False
    stored = (*trace.outputs, *part.saved)
    return all(
        t.dtype != tf.variant and t.shape.rank is not None and None not in t.shape.as_list()[1:]
        for t in stored
    )
