"""A gradient of our own for a part of a graph under construction.

This is what ``tf.custom_gradient`` does in graph mode, without its leak: that one enters every use into a registry of
the process that is never emptied, and with it the graph. Here one entry serves all uses, and finds the function that
computes the gradient in the graph itself, with which it is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import forwardprop_util, record

from ..errors import InvalidProgramError, UnsupportedError

Gradient = Callable[..., Sequence[tf.Tensor | None]]

_REGISTERED = "KerasRecompute"
_ATTRIBUTE = "_keras_recompute_gradients"


def with_gradient(
    compute: Callable[[], Sequence[tf.Tensor]], gradient: Gradient, *, inputs: Sequence[tf.Tensor], name: str
) -> list[tf.Tensor]:
    """Return ``compute()`` as a function of ``inputs``, whose derivative for tapes and tf.gradients is ``gradient``.

    ``gradient`` takes one tensor per result and returns one tensor or None per input. All ``inputs`` must be tensors of
    the default graph. Raises UnsupportedError under ``tf.autodiff.ForwardAccumulator``.
    """
    refuse_forward_mode(inputs, name)
    # What compute does is of no concern to a tape: it would differentiate a part of it, and see another part not at all.
    with record.stop_recording():
        results = list(compute())
        passed = [*results, *inputs]
        graph = tf.compat.v1.get_default_graph()
        with graph.gradient_override_map({"IdentityN": _REGISTERED}):
            outputs = tf.identity_n(passed)

    def padded(*output_gradients: tf.Tensor | None) -> list[tf.Tensor | None]:
        return [None] * len(results) + list(gradient(*output_gradients[: len(results)]))

    if not hasattr(graph, _ATTRIBUTE):
        setattr(graph, _ATTRIBUTE, {})
    getattr(graph, _ATTRIBUTE)[outputs[0].op.name] = padded
    record.record_operation(name, outputs, passed, padded)
    return outputs[: len(results)]


def is_checkpointed_call(operation: tf.Operation) -> bool:
    """Whether ``operation`` is what ``with_gradient`` put behind a computation to carry its gradient."""
    return operation.name in getattr(operation.graph, _ATTRIBUTE, {})


def refuse_forward_mode(inputs: Sequence[tf.Tensor], name: str) -> None:
    """Raise UnsupportedError if a ``tf.autodiff.ForwardAccumulator`` watches one of ``inputs``."""
    if forwardprop_util.pack_tangents(list(inputs)).tangents:
        raise UnsupportedError(
            f"forward-mode differentiation (tf.autodiff.ForwardAccumulator) of the checkpointed {name!r} is not supported: "
            f"a checkpoint says what to keep for a backward pass, and forward mode has none. Call the function itself, "
            f"available as __wrapped__."
        )


@tf.RegisterGradient(_REGISTERED)
def _registered_gradient(operation: tf.Operation, *output_gradients: tf.Tensor) -> Any:
    known: dict[str, Gradient] = getattr(operation.graph, _ATTRIBUTE, {})
    if operation.name not in known:
        raise InvalidProgramError(
            f"{operation.name!r} was copied out of the graph in which its gradient is known. Differentiate where the "
            f"checkpointed function was called, before the graph is copied or saved."
        )
    return known[operation.name](*output_gradients)
