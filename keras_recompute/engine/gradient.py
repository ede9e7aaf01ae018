"""A gradient of our own for a part of a graph under construction.

This is what ``tf.custom_gradient`` does in graph mode, without its leak: that one enters every use into a registry of
the process that is never emptied, and with it the graph. Here an entry finds the function that computes the gradient in the
graph itself, and leaves with it. Every use has one of its own, because a SavedModel stores a gradient per entry.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..errors import InvalidProgramError, UnsupportedError
from ..seams.tensorflow.gradients import forget_gradient, has_tangents, record_operation, stop_recording
from ..seams.tensorflow.operations import GRADIENT
from ..seams.tensorflow.vectorized import is_in_vectorized_body
from .dense import dense
from .graph_state import graph_state
from .program import in_default_graph

Tensors = Sequence[tf.Tensor]
Gradient = Callable[..., Sequence[tf.Tensor | None]]


_CHECKPOINT, _BY_HAND = "KerasRecompute", "GradientByHand"  # what the names of registered gradients begin with
_ATTRIBUTE = "_keras_recompute_gradients"
_numbers = itertools.count()


def with_gradient(
    compute: Callable[[], Tensors], gradient: Gradient, *, inputs: Tensors, name: str, is_checkpoint: bool = False
) -> list[tf.Tensor]:
    """Return ``compute()`` as a function of ``inputs``, whose derivative for tapes and tf.gradients is ``gradient``.

    ``gradient`` takes one tensor per result and returns one tensor or None per input. All ``inputs`` must be tensors of
    the default graph. ``is_checkpoint`` is what ``is_checkpointed_call`` answers. Raises UnsupportedError under
    ``tf.autodiff.ForwardAccumulator``.
    """
    refuse_forward_mode(inputs, name)
    # What compute does is of no concern to a tape: it would differentiate a part of it, and see another part not at all.
    with stop_recording():
        results = list(compute())
        graph = tf.compat.v1.get_default_graph()
        registered = f"{_CHECKPOINT if is_checkpoint else _BY_HAND}-{next(_numbers)}"
        with graph.gradient_override_map({"IdentityN": registered}):
            passed = tf.identity_n([*results, *inputs])
    outputs = passed[: len(results)]

    def of_tensors(*output_gradients: Any) -> Sequence[tf.Tensor | None]:
        return gradient(*(g if g is None else dense(g) for g in output_gradients))

    def padded(*output_gradients: Any) -> list[tf.Tensor | None]:
        return [None] * len(outputs) + list(of_tensors(*output_gradients[: len(outputs)]))

    _register(registered, graph, padded)
    # Of the results alone: a tape makes zeros for everything that is recorded and has no gradient.
    record_operation(name, outputs, inputs, of_tensors)
    return outputs


def with_both_gradients(
    compute: Callable[[], Sequence[tf.Tensor]],
    gradient: Callable[[Tensors, Tensors, Sequence[tf.Tensor | None]], Sequence[tf.Tensor | None]],
    again: Callable[[Tensors, Tensors], Tensors],
    *,
    inputs: Tensors,
    count: int,
    name: str,
) -> list[tf.Tensor]:
    """As ``with_gradient``, for a gradient that is not to be differentiated operation by operation.

    ``compute()`` returns ``count`` results, then what else the gradient reads. ``gradient(inputs, made, result_gradients)``
    is given the inputs and all that was computed, as tensors of the graph that it is called in, and returns one tensor or
    None per input. ``again(inputs, made)`` returns the results anew, by operations that can be differentiated twice and
    more; only derivatives of the gradient ask for it.
    """
    made: list[tf.Tensor] = []

    def differentiable_gradient(*output_gradients: tf.Tensor) -> Sequence[tf.Tensor | None]:
        # The gradient may be asked for in another graph than the results were, and its own derivative in yet another.
        given, known = [in_default_graph(t) for t in inputs], [in_default_graph(t) for t in made]
        incoming = [dy if dy is None else in_default_graph(dy) for dy in output_gradients[:count]]  # None: of whole numbers
        found: list[tf.Tensor | None] = []

        def backward() -> Sequence[tf.Tensor]:
            found[:] = gradient(given, known, incoming)
            return [g for g in found if g is not None]

        def gradient_of_gradient(*outer: tf.Tensor) -> list[tf.Tensor | None]:
            remaining = iter(outer)
            aligned = [None if g is None else next(remaining) for g in found]
            here = [in_default_graph(t) for t in known]
            return _second_derivative(lambda *values: again(values, here), given, incoming, aligned)

        sources = [*given, *(dy for dy in incoming if dy is not None)]
        results = iter(with_gradient(backward, gradient_of_gradient, inputs=sources, name=name))
        return [None if g is None else next(results) for g in found]

    made[:] = with_gradient(compute, differentiable_gradient, inputs=inputs, name=name)
    return made[:count]


def _second_derivative(
    function: Callable[..., Sequence[tf.Tensor]],
    inputs: Sequence[tf.Tensor],
    output_gradients: Sequence[tf.Tensor | None],
    outer: Sequence[tf.Tensor | None],
) -> list[tf.Tensor | None]:
    """Back-propagate ``outer``, one per input, through the gradient of ``function`` at ``inputs``.

    Returns the gradients of the inputs, then of those ``output_gradients`` that are not None.
    """
    inputs = [tf.identity(in_default_graph(t)) for t in inputs]
    incoming = [dy if dy is None else tf.identity(in_default_graph(dy)) for dy in output_gradients]
    pairs = [(y, dy) for y, dy in zip(function(*inputs), incoming) if dy is not None]
    first = tf.gradients([y for y, _ in pairs], inputs, grad_ys=[dy for _, dy in pairs], unconnected_gradients="none")
    wanted = [(dense(g), ddx) for g, ddx in zip(first, outer) if g is not None and ddx is not None]
    sources = [*inputs, *(dy for dy in incoming if dy is not None)]
    return tf.gradients([g for g, _ in wanted], sources, grad_ys=[ddx for _, ddx in wanted], unconnected_gradients="none")


def is_dissolved() -> bool:
    """Whether a gradient of our own would be lost here, so that what has one is to be written without.

    That is in the body of a vectorised map: TensorFlow writes its operations once more for all elements, with the gradients
    of their types, and a tape around the map would miss those that it leaves as they are, since they do not depend on the
    element. A loop whose gradient was taken once already could not be differentiated there at all.
    """
    return not tf.executing_eagerly() and is_in_vectorized_body(tf.compat.v1.get_default_graph())


def is_checkpointed_call(operation: tf.Operation) -> bool:
    """Whether ``operation`` carries the gradient of a checkpointed function."""
    return operation.type == "IdentityN" and operation.node_def.attr[GRADIENT].s.startswith(_CHECKPOINT.encode())


def refuse_forward_mode(inputs: Sequence[tf.Tensor], name: str) -> None:
    """Raise UnsupportedError if a ``tf.autodiff.ForwardAccumulator`` watches one of ``inputs``."""
    if has_tangents(inputs):
        raise UnsupportedError(
            f"forward-mode differentiation (tf.autodiff.ForwardAccumulator) of the checkpointed {name!r} is not supported: "
            f"a checkpoint says what to keep for a backward pass, and forward mode has none. Call the function itself, "
            f"available as __wrapped__."
        )


def _register(name: str, graph: Any, gradient: Gradient) -> None:
    """Enter the gradient of one operation of ``graph`` into TensorFlow's registry, for as long as the graph lives."""
    graph_state(graph, _ATTRIBUTE)[name] = gradient
    reference = weakref.ref(graph)

    @tf.RegisterGradient(name)
    def registered(operation: tf.Operation | None, *output_gradients: Any) -> Any:
        here = reference()
        # There is no operation while a SavedModel is written: the gradient is traced to be stored.
        if here is None or (operation is not None and operation.graph is not here):
            raise InvalidProgramError(
                f"{operation and operation.name!r} was copied out of the graph in which its gradient is known. Differentiate "
                f"where the checkpointed function was called, before the graph is copied, or save it with its gradients "
                f"(tf.saved_model.SaveOptions(experimental_custom_gradients=True), which is the default)."
            )
        return getattr(here, _ATTRIBUTE)[name](*output_gradients)

    weakref.finalize(graph, forget_gradient, name).atexit = False
