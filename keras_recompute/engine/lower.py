"""Step 5 of the engine: a partitioned function becomes operations of the graph under construction.

The forward program runs where the function is called. The backward program stands behind a custom gradient, fenced so
that it starts when the gradients of the outputs are there, fed by the inputs and the saved values. It is itself a
partitioned function whose derivative can be asked for, and so on (see ``higher``): a tape does not see operations that
are copied into a graph, so each level stands behind a custom gradient of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from ..phases import backward_scope, forward_scope
from .gradient import with_gradient
from .higher import derivative
from .offload import fetch, store
from .partition import Partition
from .passes import target_now
from .program import in_default_graph
from .undifferentiable import refusing, with_zeros
from .writing import fenced


def lower(part: Partition, arguments: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
    """Write a call of the partitioned function into the default graph and return its flat outputs."""
    values = refusing([in_default_graph(value) for value in part.joint.trace.values(arguments)], part.joint.refused)

    def forward() -> Sequence[tf.Tensor]:
        with tf.name_scope(forward_scope(name)):
            results = part.forward.write(values)
        n_outputs = len(part.joint.trace.outputs)
        return [*results[:n_outputs], *store(part, results[n_outputs:], target_now())]

    return _call(part, forward, values, name)


def recalled(part: Partition, values: Sequence[tf.Tensor], results: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
    """Return the outputs of an earlier run of the partitioned function as functions of ``values``, its ports.

    ``results`` are its outputs, then its saved values. Nothing is run again but what derivatives need.
    """
    return _call(part, lambda: [in_default_graph(t) for t in results], [in_default_graph(t) for t in values], name)


def _call(
    part: Partition, forward: Callable[[], Sequence[tf.Tensor]], values: Sequence[tf.Tensor], name: str
) -> list[tf.Tensor]:
    """Return the outputs among ``forward()``, the results of the forward program; derivatives go to ``values``."""
    n_outputs = len(part.joint.trace.outputs)

    def gradient(*result_gradients: tf.Tensor) -> list[tf.Tensor | None]:
        found = _backpropagate(part, values, kept, result_gradients[:n_outputs], name)
        return with_zeros(found, values, part.joint.refused)

    # The saved values are results too, so that no derivative finds a way past the gradient given here.
    results = with_gradient(forward, gradient, inputs=values, name=name, is_checkpoint=True)
    kept = [*results[n_outputs:], *(results[o] for o in part.at_hand)]
    return results[:n_outputs]


def _backpropagate(
    part: Partition,
    values: Sequence[tf.Tensor],
    kept: Sequence[tf.Tensor],
    output_gradients: Sequence[tf.Tensor],
    name: str,
) -> list[tf.Tensor | None]:
    """Write the backward program and return one gradient or None per differentiable port, themselves differentiable."""
    gradients = part.joint.gradients
    # The gradient may be asked for in another graph than the function was called in, as in the body of a loop.
    values, kept = [in_default_graph(t) for t in values], [in_default_graph(t) for t in kept]
    incoming = [in_default_graph(dy) for dy, wanted in zip(output_gradients, part.joint.output_gradients) if wanted is not None]

    def backward() -> Sequence[tf.Tensor]:
        like = [value for value, g in zip(values, gradients) if g is not None]
        target = target_now()
        kept_here = fetch(part, kept, target)
        inputs = [*values, *kept_here]
        with tf.name_scope(backward_scope(name)):
            begun = part.begin([*inputs, *incoming])[len(inputs) :]

        def backpropagate(inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return part.finish([*inputs, *begun])

        def in_scope(inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            with tf.name_scope(backward_scope(name)):
                return backpropagate(inputs)

        if part.cheap is None:
            return fenced(in_scope, inputs, after=begun, like=like, target=target)
        with tf.name_scope(backward_scope(name)):  # what stands in place of the branch is of the section too
            return fenced(backpropagate, inputs, after=begun, like=like, cheap=part.cheap, target=target)

    def gradient_of_backward(*output_gradients: tf.Tensor) -> list[tf.Tensor | None]:
        n = len(gradients)
        higher = derivative(part)
        again = [*values[:n], *incoming, *values[n:], *fetch(part, kept, target_now())]
        return _backpropagate(higher, again, [], output_gradients, name)

    if all(g is None for g in gradients):
        return [None] * len(gradients)
    found = iter(with_gradient(backward, gradient_of_backward, inputs=[*values[: len(gradients)], *incoming], name=name))
    return [None if g is None else next(found) for g in gradients]
