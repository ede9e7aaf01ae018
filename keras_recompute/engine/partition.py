"""Step 3 of the engine: split the joint graph into a forward and a backward program.

Starting from the gradients, walk towards the inputs. Each forward value met on the way is

* *at hand*: an argument, a variable's value, and, where the caller keeps the outputs anyway, an output;
* *saved*: chosen by the policy, or the result of an impure operation (the rule that overrides every policy);
* *recomputed*: everything else; the operation that makes it joins the backward program, and the walk goes on.

Only what the walk meets is ever saved, so a policy that would keep everything keeps no more than the plain gradient does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from .joint import Joint
from .marks import equal_values, is_alternative
from .program import Program, inputs_of, operations_between
from .trace import Port

Policy = Callable[[tf.Tensor], bool]


@dataclass(frozen=True, eq=False)
class Partition:
    """The two programs of a function.

    ``forward`` takes the ports of the trace and returns the outputs, then the saved values. ``backward`` takes the ports,
    the saved values, the outputs whose numbers are in ``at_hand``, then the output gradients; it returns the
    ``gradients`` that are not None, in order.
    """

    joint: Joint
    forward: Program
    backward: Program
    saved: tuple[tf.Tensor, ...]
    at_hand: tuple[int, ...]

    @property
    def replayed(self) -> tuple[tf.Operation, ...]:
        """The forward operations that the backward program repeats."""
        return tuple(op for op in self.backward.operations if op not in self.joint.backward and op.type != "Const")


def partition(joint: Joint, policy: Policy, *, at_hand: Sequence[int] = ()) -> Partition:
    """Split ``joint`` by ``policy``, a function that tells for a forward tensor whether to save it.

    ``at_hand`` are the numbers of the outputs that the caller keeps until the backward pass for reasons of its own.
    """
    trace = joint.trace
    given = {t.ref() for port in trace.ports for t in port} | {placeholder.ref() for placeholder, _ in trace.handles}
    kept = tuple(_port_of(trace.outputs[o], given) for o in at_hand)
    incoming = tuple((dy,) for dy in joint.output_gradients if dy is not None)

    gradients = [g for g in joint.gradients if g is not None]
    available = given | {t.ref() for port in (*kept, *incoming) for t in port}
    saved, replays = _saved_values(joint, policy, gradients, available)
    effects = [op for op in trace.graph.get_operations() if op not in joint.backward and not trace.purity.is_pure(op)]
    forward = Program(
        graph=trace.graph,
        ports=trace.ports,
        handles=trace.handles,
        operations=operations_between([*trace.outputs, *saved], trace.ports, trace.handles, always=effects),
        outputs=(*trace.outputs, *saved),
    )
    backward_ports = (*trace.ports, *(_port_of(t, given) for t in saved), *kept, *incoming)
    backward = Program(
        graph=trace.graph,
        ports=backward_ports,
        handles=trace.handles,
        operations=operations_between(gradients, backward_ports, trace.handles, replays=replays),
        outputs=tuple(gradients),
        replays=replays,
    )
    return Partition(joint, forward, backward, saved, tuple(at_hand))


def _port_of(kept: tf.Tensor, given: set[Any]) -> Port:
    """Return ``kept`` and the tensors that it passes on, which are at hand as well."""
    return tuple(t for t in equal_values(kept) if t is kept or t.ref() not in given)


def _saved_values(
    joint: Joint, policy: Policy, targets: Iterable[tf.Tensor], available: set[Any]
) -> tuple[tuple[tf.Tensor, ...], frozenset[tf.Operation]]:
    """Return the forward values to save, and the marked operations to replay by their alternative."""
    purity = joint.trace.purity
    available = set(available)
    saved: dict[Any, tf.Tensor] = {}
    replays: set[tf.Operation] = set()
    seen: set[Any] = set()
    waiting = list(targets)
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in available or tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        operation = tensor.op
        if operation not in joint.backward and operation.type != "Const":
            if not purity.is_pure(operation) or policy(tensor):
                same = {t.ref() for t in equal_values(tensor)}
                if not same & available:  # else what it passes on is there, and passing on is free
                    saved[tensor.ref()] = tensor
                    available |= same
                    continue
            if is_alternative(operation) and all(t.ref() in available or policy(t) for t in operation.inputs[2:]):
                replays.add(operation)
        waiting.extend(inputs_of(operation, frozenset(replays)))
    return tuple(saved.values()), frozenset(replays)
