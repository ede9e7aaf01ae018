"""Step 5 of the engine: a partitioned function becomes operations of the graph under construction.

The forward program runs where the function is called. The backward program stands behind a custom gradient, fenced so
that it starts when the gradients of the outputs are there, fed by the inputs and the saved values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from ..phases import backward_scope, forward_scope
from .fence import fenced
from .partition import Partition


def lower(part: Partition, arguments: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
    """Write a call of the partitioned function into the default graph and return its flat outputs."""
    joint = part.joint
    n_outputs = len(joint.trace.outputs)

    @tf.custom_gradient
    def call(*values: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., list[tf.Tensor | None]]]:
        with tf.name_scope(forward_scope(name)):
            results = part.forward.write(values)
        outputs, saved = results[:n_outputs], results[n_outputs:]

        def gradient(*output_gradients: tf.Tensor) -> list[tf.Tensor | None]:
            incoming = [d for d, wanted in zip(output_gradients, joint.output_gradients) if wanted is not None]
            kept = [outputs[o] for o in part.at_hand]

            def replay_and_backpropagate(inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
                with tf.name_scope(backward_scope(name)):
                    return part.backward.write([*inputs, *incoming])

            like = [value for value, g in zip(values, joint.gradients) if g is not None]
            found = iter(fenced(replay_and_backpropagate, [*values, *saved, *kept], after=incoming, like=like))
            return [None if g is None else next(found) for g in joint.gradients]

        return tuple(outputs), gradient

    # Reading the variables inside would hide them from the caller's tape.
    flat = call(*joint.trace.values(arguments))
    return list(flat) if isinstance(flat, (list, tuple)) else [flat]
