"""Step 5 of the engine: write a partitioned function into the graph under construction.

The forward program runs where the function is called. The backward program is behind a custom
gradient and a fence: it starts when the gradients of the outputs are there, and is fed by the
inputs and the saved values. It is itself a partitioned function with a derivative (see
``higher_order``). A tape does not see operations that are copied into a graph, so each order is
behind a custom gradient of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import tensorflow as tf

from ...op_names import backward_scope, forward_scope
from ...seams.tensorflow.functions import without_control_dependencies
from ...seams.tensorflow.gradients import is_recorded
from ..capture.custom_vjp import Gradients, custom_vjp
from ..capture.missing_gradients import raising_gradient, with_zero_gradients
from ..graph.captures import capture_all, in_default_graph
from ..graph.dataflow import pick
from ..graph.sparse_gradients import zero_values
from ..graph.target_ops import Like, fenced
from ..partition.partition import Partition
from ..passes import target_now
from .eager_functions import EagerFunction
from .early_work import delay_early_work, note_call
from .higher_order import derivative, part_for_outputs
from .offloading import fetch, store
from .update_order import update_tokens, updates_follow

Tensors = Sequence[tf.Tensor]


def lower(part: Partition, arguments: Tensors, *, name: str) -> list[tf.Tensor]:
    """Call the partitioned function, and return its flat outputs.

    In a graph the call is written there. Eagerly it runs as two compiled functions, the forward and
    the backward program.
    """
    trace = part.joint.trace
    if tf.executing_eagerly():
        values = raising_gradient(trace.values(arguments), part.joint.no_gradient_reasons)
        return _eager_function(part, name)(values)
    values = capture_all(trace.values(arguments))
    values = raising_gradient(values, part.joint.no_gradient_reasons)
    outputs = _call(part, lambda: _forward(part, values, name), values, name)
    note_call(outputs)
    return outputs


def _eager_function(part: Partition, name: str) -> EagerFunction:
    def gradient(
        values: Tensors, kept: Tensors, dys: Sequence[tf.Tensor | None], requested: frozenset[int]
    ) -> Gradients:
        found = _call_backward_eagerly(part_for_outputs(part, requested), values, kept, dys, name)
        return with_zero_gradients(found, values, part.joint.no_gradient_reasons)

    if "forward" not in part.eager:
        part.eager["forward"] = EagerFunction(
            lambda values: _forward(part, values, name),
            gradient,
            outputs=len(part.joint.trace.outputs),
            kept_by_caller=part.kept_by_caller,
            name=name,
        )
    return part.eager["forward"]


def _call_backward_eagerly(
    part: Partition,
    values: Tensors,
    kept: Tensors,
    output_gradients: Sequence[tf.Tensor | None],
    name: str,
) -> Gradients:
    """Do what ``_backward_call`` does, in eager code."""
    joint = part.joint
    incoming = joint.incoming_among(output_gradients)
    n_ports, n_values, n_known = len(joint.gradients), len(values), len(values) + len(kept)

    def compute(inputs: Tensors) -> list[tf.Tensor]:
        known = inputs[:n_values], fetch(part, inputs[n_values:n_known], target_now())
        rows = part.write_rows([*known[0], *known[1]])
        return [*_write_backward(part, *known, inputs[n_known:], rows, name), *rows]

    def gradient(
        inputs: Tensors, _: Tensors, dys: Sequence[tf.Tensor | None], requested: frozenset[int]
    ) -> Gradients:
        values, known, incoming = inputs[:n_values], inputs[n_values:n_known], inputs[n_known:]
        inputs_of_derivative = [*values[:n_ports], *incoming, *values[n_ports:], *known]
        derivative_part = part_for_outputs(derivative(part), requested)
        found = _call_backward_eagerly(derivative_part, inputs_of_derivative, [], dys, name)
        nothing = [None] * (n_known - n_ports)
        return [*found[:n_ports], *nothing, *found[n_ports:]]

    if not joint.produced:
        return [None] * n_ports
    tensors = len(joint.produced)
    if "backward" not in part.eager:
        outputs = tensors + len(joint.rows)
        part.eager["backward"] = EagerFunction(compute, gradient, outputs=outputs, name=name)
    found = part.eager["backward"]([*values, *kept, *incoming])
    return joint.assemble(found[:tensors], found[tensors:], values)


def _forward(part: Partition, values: Tensors, name: str) -> list[tf.Tensor]:
    """Write the forward program; return the outputs, then the saved values."""
    trace = part.joint.trace
    first_weight = len(trace.arguments)
    weights = range(first_weight, first_weight + len(trace.variables))
    with tf.name_scope(forward_scope(name)):
        results = part.forward.write(delay_early_work(part.forward, values, weights))
    n_outputs = len(trace.outputs)
    return [*results[:n_outputs], *store(part, results[n_outputs:], target_now())]


def outputs_with_gradient(
    part: Partition, values: Sequence[tf.Tensor], results: Sequence[tf.Tensor], *, name: str
) -> list[tf.Tensor]:
    """Return the outputs of an earlier run as functions of ``values``, its ports.

    ``results`` are its outputs, then its saved values. Nothing runs again except what derivatives
    need.
    """
    return _call(part, lambda: capture_all(results), capture_all(values), name)


def _call(
    part: Partition, forward: Callable[[], Tensors], values: Tensors, name: str
) -> list[tf.Tensor]:
    """Return the outputs among ``forward()``, whose derivatives go to ``values``.

    ``forward`` returns the results of the forward program.
    """
    n_outputs = len(part.joint.trace.outputs)

    def gradient(*result_gradients: tf.Tensor, requested: frozenset[int]) -> Gradients:
        return _backpropagate(part, values, kept, result_gradients[:n_outputs], requested, name)

    # The saved values are results too, so that no derivative finds a way past the gradient given
    # here.
    results = custom_vjp(
        forward, gradient, inputs=values, name=name, is_checkpoint=True, outputs=n_outputs
    )
    kept = [*results[n_outputs:], *pick(results, part.kept_by_caller)]
    return results[:n_outputs]


def _backpropagate(
    part: Partition,
    values: Tensors,
    kept: Tensors,
    output_gradients: Sequence[tf.Tensor | None],
    requested: frozenset[int],
    name: str,
) -> Gradients:
    """Write the backward program of ``requested`` outputs; return one gradient or None per port.

    The gradients can be differentiated again.
    """
    found = _backward_call(part_for_outputs(part, requested), values, kept, output_gradients, name)
    return with_zero_gradients(found, values, part.joint.no_gradient_reasons)


def _backward_call(
    part: Partition,
    values: Tensors,
    kept: Tensors,
    output_gradients: Sequence[tf.Tensor | None],
    name: str,
) -> Gradients:
    joint = part.joint
    # The gradient may be asked for in another graph than the function was called in, as in the body
    # of a loop.
    values, kept = capture_all(values), capture_all(kept)
    incoming = list(map(in_default_graph, joint.incoming_among(output_gradients)))
    n_ports = len(joint.gradients)
    if not joint.produced:
        return [None] * n_ports
    # Before the fence: the loop around a section may need them there.
    rows = part.write_rows([*values, *fetch(part, kept, target_now())])

    def gradient_of_backward(
        *output_gradients: tf.Tensor, requested: frozenset[int] | None = None
    ) -> Gradients:
        inputs_of_derivative = [
            *values[:n_ports],
            *incoming,
            *values[n_ports:],
            *fetch(part, kept, target_now()),
        ]
        derivative_part = (
            derivative(part) if requested is None else part_for_outputs(derivative(part), requested)
        )
        return _backward_call(derivative_part, inputs_of_derivative, [], output_gradients, name)

    sources = [*values[:n_ports], *incoming]
    # Only under a tape is there a second derivative, but for who calls tf.gradients twice.
    outputs = len(joint.produced) if any(map(is_recorded, sources)) else 0
    found = custom_vjp(
        lambda: _write_backward(
            part, values, fetch(part, kept, target_now()), incoming, rows, name
        ),
        gradient_of_backward,
        inputs=sources,
        name=name,
        outputs=outputs,
    )
    return joint.assemble(found, rows, values)


def _write_backward(
    part: Partition, values: Tensors, kept: Tensors, incoming: Tensors, rows: Tensors, name: str
) -> Tensors:
    """Write the backward program behind a fence; return the ``gradient_tensors``."""
    target, inputs = target_now(), [*values, *kept]
    begun: Tensors = []
    if prologue := part.prologue:
        with tf.name_scope(backward_scope(name)):
            # A branch reads arrays. Without one, XLA would fuse the section's last activation into
            # its gradient here, and keep the activation's input from the forward pass on.
            begun = fenced(
                lambda given: prologue.write([*given, *incoming]),
                inputs,
                after=incoming,
                like=incoming,
                target=target,
            )

    def write(inputs: Tensors) -> list[tf.Tensor]:
        return part.write_gradient([*inputs, *incoming], begun)

    def write_in_scope(inputs: Tensors) -> list[tf.Tensor]:
        with tf.name_scope(backward_scope(name)):
            return write(inputs)[: len(like)]

    like = _like_gradients(part, values, rows)
    after = [*(begun or incoming), *update_tokens()]
    if part.cheap is None:
        # Looking for effects among all operations of a branch takes TensorFlow time.
        has_effects = bool(part.joint.effects)
        with contextlib.nullcontext() if has_effects else without_control_dependencies():
            return fenced(write_in_scope, inputs, after=after, like=like, target=target)
    # What is in place of the branch belongs to the section too.
    with tf.name_scope(backward_scope(name)):
        cheap = replace(part.cheap, is_updated=updates_follow())
        found = fenced(write, inputs, after=after, like=like, cheap=cheap, target=target)
        return found[: len(like)]


def _like_gradients(part: Partition, values: Tensors, rows: Tensors) -> list[Like]:
    """Return a tensor, or its maker, of the type and shape of each backward result."""
    joint = part.joint
    rows_of = dict(zip(joint.rows, rows))
    like: list[Like] = pick(values, joint.produced)
    for number, (port, tensor) in enumerate(zip(joint.produced, joint.gradient_tensors)):
        if port in rows_of:
            like[number] = functools.partial(zero_values, tensor, rows_of[port])
    return like
