"""Step 2 of the engine: differentiate inside the traced graph, which gives one joint graph.

What backward operations read of forward operations are the *residuals*: the values that a training
step would keep. The next step decides which of them it keeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from ...graph_traversal import reachable
from ...seams.tensorflow.gradients import stop_gradients_to
from ...user_code import warn_user
from ..graph.dataflow import (
    consumers,
    is_differentiable,
    makers,
    numbers_present,
    present,
    producers,
)
from ..graph.op_sets import LOOPS
from ..graph.sparse_gradients import (
    Gradient,
    dense_behind_branches,
    densify,
    is_handed_on_to,
    slices,
    sparse_or_dense,
    values_of,
)
from .gradient_effects import effects_among, with_handles_of_gradients
from .missing_gradients import operations_without_gradient, upstream_ports
from .original_control_flow import snapshot_control_flow
from .trace import Trace


@dataclass(frozen=True, eq=False)
class JointGraph:
    """A traced function together with its gradient.

    ``output_gradients`` has one placeholder per output that can have a gradient, else None.
    ``gradients`` has one gradient per differentiable port of the trace, sparse where TensorFlow's
    is, or None where no output depends on it. ``backward`` are the operations that differentiation
    added; all others are forward. ``no_gradient_reasons`` has the ports that feed an operation
    without a gradient, with the reason (see ``missing_gradients``). ``gradient_unused`` are the
    ports whose gradient nothing may wait for. ``effects`` are the ``backward`` operations that have
    effects, such as a print, in the order in which they run.
    """

    trace: Trace
    output_gradients: tuple[tf.Tensor | None, ...]
    gradients: tuple[Gradient | None, ...]
    backward: frozenset[tf.Operation]
    no_gradient_reasons: Mapping[int, str]
    gradient_unused: frozenset[int] = frozenset()
    effects: tuple[tf.Operation, ...] = ()

    @property
    def produced(self) -> tuple[int, ...]:
        """The ports that have a gradient."""
        return tuple(numbers_present(self.gradients))

    @property
    def gradient_tensors(self) -> tuple[tf.Tensor, ...]:
        """One tensor per port in ``produced``: its gradient, or the values of a sparse one."""
        return tuple(map(values_of, present(self.gradients)))

    @property
    def forward_operations(self) -> Iterator[tf.Operation]:
        """The operations of the forward pass."""
        return itertools.filterfalse(self.backward.__contains__, self.trace.graph.get_operations())

    @property
    def incoming(self) -> tuple[tf.Tensor, ...]:
        """The placeholders of the output gradients, without the outputs that have none."""
        return tuple(present(self.output_gradients))

    def incoming_among(self, output_gradients: Sequence[Any]) -> list[Any]:
        """Return those of ``output_gradients``, one per output, that ``incoming`` stand for."""
        pairs = zip(output_gradients, self.output_gradients)
        return [gradient for gradient, placeholder in pairs if placeholder is not None]

    @property
    def ends(self) -> tuple[tf.Tensor, ...]:
        """All tensors that the backward pass computes: the gradients, and what effects read."""
        read_by_effects = itertools.chain(*(operation.inputs for operation in self.effects))
        return (*self.gradient_tensors, *self.rows.values(), *read_by_effects)

    @property
    def rows(self) -> dict[int, tf.Tensor]:
        """The rows of the sparse gradients, by their ports."""
        ports = enumerate(self.gradients)
        return {port: g.indices for port, g in ports if isinstance(g, tf.IndexedSlices)}

    def assemble(
        self, tensors: Sequence[tf.Tensor], rows: Sequence[tf.Tensor], values: Sequence[tf.Tensor]
    ) -> list[Gradient | None]:
        """Return one gradient or None per differentiable port.

        ``tensors`` stand for ``gradient_tensors``, ``rows`` for those of ``rows``, and ``values``
        has the values of the ports.
        """
        gradients: list[Gradient | None] = [None] * len(self.gradients)
        for port, tensor in zip(self.produced, tensors):
            gradients[port] = tensor
        for port, indices in zip(self.rows, rows):
            gradients[port] = slices(gradients[port], indices, values[port])
        return gradients

    def only(self, ports: Collection[int]) -> JointGraph:
        """Return the joint graph with the gradients of ``ports`` alone."""
        gradients: list[Gradient | None] = [None] * len(self.gradients)
        for port in ports:
            gradients[port] = self.gradients[port]
        return replace(self, gradients=tuple(gradients))


def join(trace: Trace, *, gradient_unused: Collection[int] = ()) -> JointGraph:
    """Add the gradient of every differentiable port to the traced graph.

    Nothing waits for the gradient of a port in ``gradient_unused``, so that a compiler can drop it.
    """
    graph = trace.graph
    snapshot_control_flow(graph)
    forward = graph.get_operations()
    with graph.as_default(), tf.name_scope("output_gradients/"):
        output_gradients = tuple(map(_placeholder_like, trace.outputs))
    outputs, incoming = [], []
    for output, output_gradient in zip(trace.outputs, output_gradients):
        if output_gradient is not None:
            outputs.append(output)
            incoming.append(output_gradient)
    with graph.as_default():
        found, reasons = _differentiate(trace, outputs, incoming, gradient_unused)
        gradients = tuple(_as_exchanged(g, incoming) for g in found)
    # A pass may add operations, so what was added is asked for each time.
    for order in trace.target.at("joined"):
        with graph.as_default():
            wanted = []
            for port, gradient in enumerate(gradients):
                if gradient is not None and port not in gradient_unused:
                    wanted.append(values_of(gradient))
            order(_added(graph, forward), incoming, wanted, trace.target)
    added = _added(graph, forward)
    trace = with_handles_of_gradients(trace, added)
    effects = effects_among(added, trace)
    unused = frozenset(gradient_unused)
    return JointGraph(trace, output_gradients, gradients, added, reasons, unused, effects)


def without_gradients(trace: Trace) -> JointGraph:
    """Return the joint graph of a function that is not differentiated, for inference."""
    outputs, ports = (None,) * len(trace.outputs), (None,) * len(trace.differentiable)
    return JointGraph(trace, outputs, ports, frozenset(), {})


def _placeholder_like(output: tf.Tensor) -> tf.Tensor | None:
    """Return a placeholder for the gradient of ``output``; None if it cannot have one."""
    if not is_differentiable(output):
        return None
    return tf.compat.v1.placeholder(output.dtype, output.shape)


def _differentiate(
    trace: Trace,
    outputs: Sequence[tf.Tensor],
    incoming: Sequence[tf.Tensor],
    gradient_unused: Collection[int],
) -> tuple[list[Any], dict[int, str]]:
    """Return the gradient of every differentiable port, and why some ports have none."""
    forward = trace.graph.get_operations()
    constant = _constant_inputs(forward, trace.differentiable)
    blocking: list[tf.Operation] = []
    no_gradient_reasons: dict[int, str] = {}
    for attempt in range(3):
        stops = [t for op in blocking for t in op.outputs]
        try:
            with stop_gradients_to(constant), dense_behind_branches(forward) as made_dense:
                found = tf.gradients(
                    outputs,
                    list(trace.differentiable),
                    grad_ys=incoming,
                    stop_gradients=stops or None,
                )
        except LookupError as error:
            # First operations of the function itself, then of a loop or branch.
            blocking = operations_without_gradient(forward, inside=attempt > 0)
            no_gradient_reasons = dict.fromkeys(
                upstream_ports(blocking, trace.differentiable), str(error)
            )
            if attempt == 2:
                raise
        else:
            break
    _warn_of_dense_gradients(trace, made_dense, found, gradient_unused)
    # A port without a gradient may have a part of one, by another path, which is of no use.
    for port in no_gradient_reasons:
        found[port] = None
    return found, no_gradient_reasons


def _constant_inputs(
    forward: Iterable[tf.Operation], differentiable: Iterable[tf.Tensor]
) -> dict[tf.Operation, list[int]]:
    """Return the numbers of inputs without a derivative, of operations that have one.

    What depends on ``differentiable`` has a derivative. Loops are left out: a constant input, such
    as an empty list, is filled with values whose gradient a second derivative needs.
    """
    depending = reachable(makers(differentiable), consumers)
    constant = {}
    for operation in forward:
        if operation in depending and operation.type not in LOOPS:
            numbers = enumerate(makers(operation.inputs))
            constant[operation] = [number for number, maker in numbers if maker not in depending]
    return constant


def _warn_of_dense_gradients(
    trace: Trace,
    made_dense: Collection[Any],
    gradients: Sequence[Any],
    gradient_unused: Collection[int],
) -> None:
    """Warn of variables whose gradient is dense here, and sparse in plain TensorFlow."""
    # Arguments are seldom what an optimizer updates.
    first = len(trace.arguments)
    for number, (variable, gradient) in enumerate(zip(trace.variables, gradients[first:]), first):
        if number in gradient_unused or not isinstance(gradient, tf.Tensor):
            continue
        read_as = (*trace.ports[number], trace.differentiable[number])
        if not any(is_handed_on_to(made_dense, each) for each in read_as):
            continue
        warn_user(
            f"the gradient of {variable.name!r} is dense, and tf.IndexedSlices without "
            "recomputation, because a branch of tf.cond or tf.switch_case looks up rows of it. "
            "Adam and some other optimizers treat the two differently. Look up the rows before "
            "the branch, or do not recompute the branch"
        )


def _as_exchanged(gradient: Any, incoming: Sequence[tf.Tensor]) -> Gradient | None:
    """Return a gradient in the form in which programs exchange it.

    It is sparse if its rows can be computed before the fence. Rows that a loop stacks are a result
    of its backward loop, and cannot.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    needed = reachable([gradient.indices.op], producers)
    waits = not needed.keys().isdisjoint(makers(incoming))
    return densify(gradient) if waits else sparse_or_dense(gradient)


def _added(graph: Any, forward: Sequence[tf.Operation]) -> frozenset[tf.Operation]:
    """Return the operations of ``graph`` that are not ``forward``, nor read by it.

    Differentiating a loop makes the forward loop return what its gradient needs, through operations
    that are added in front of it.
    """
    return frozenset(graph.get_operations()).difference(reachable(forward, producers))
