"""A gradient of our own for a part of a graph under construction.

This is what ``tf.custom_gradient`` does in graph mode, without its leak: that one enters every use into a registry of
the process that is never emptied, and with it the graph. Here an entry finds the function that computes the gradient in the
graph itself, and leaves with it. Every use has one of its own, because a SavedModel stores a gradient per entry.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Union

import tensorflow as tf

from ..errors import InvalidProgramError, UnsupportedError
from ..seams.tensorflow.gradients import (
    has_tangents,
    record_operation,
    stop_recording,
    unregister_gradient,
)
from ..seams.tensorflow.operations import GRADIENT
from ..seams.tensorflow.vectorized_map import is_in_vectorized_body
from .graph_state import graph_state
from .program import in_default_graph
from .sparse_gradients import densify, values_of

Tensors = Sequence[tf.Tensor]
Gradients = Sequence[Union[tf.Tensor, tf.IndexedSlices, None]]
Gradient = Callable[..., Gradients]


_CHECKPOINT, _BY_HAND = "KerasRecompute", "GradientByHand"  # what the names of registered gradients begin with
_ATTRIBUTE = "_keras_recompute_gradients"
_ASKED = "_keras_recompute_asked"  # attribute of the gradient of an output that is asked for
_numbers = itertools.count()


def custom_vjp(
    compute: Callable[[], Tensors],
    gradient: Gradient,
    *,
    inputs: Tensors,
    name: str,
    is_checkpoint: bool = False,
    outputs: int = 0,
) -> list[tf.Tensor]:
    """Return ``compute()`` as a function of ``inputs``, with the derivative ``gradient``.

    ``gradient`` takes one tensor per result and returns one gradient or None per input. TensorFlow
    gives it zeros for a result that nobody differentiates. With ``outputs`` it takes an argument
    ``asked`` too: the numbers of those of the first ``outputs`` results that somebody does
    differentiate. In a graph all ``inputs`` must be tensors of the default graph.

    ``is_checkpoint`` is what ``is_checkpointed_call`` answers. Raises UnsupportedError under
    ``tf.autodiff.ForwardAccumulator``.
    """
    refuse_forward_mode(inputs, name)
    # A tape would differentiate a part of what compute does, and not see another part at all.
    with stop_recording():
        results = list(compute())

    differentiable = [n for n, t in enumerate(results[:outputs]) if _has_gradient(t)]
    # Whoever asks for any gradient asks for that of the only output.
    told_apart = differentiable if len(differentiable) > 1 else []

    def of_tensors(*output_gradients: Any) -> Gradients:
        given = [None if g is None else densify(g) for g in output_gradients]
        if not outputs:
            return gradient(*given)
        marked = [n for n in told_apart if getattr(output_gradients[n], _ASKED, False)]
        # No mark is left where TensorFlow runs gradients as a function of its own, such as a loaded
        # one: all of them are asked for then.
        return gradient(*given, asked=frozenset(marked or differentiable))

    kind = _CHECKPOINT if is_checkpoint else _BY_HAND
    results = _passed_on(results, inputs, of_tensors, name=name, kind=kind)
    for n in told_apart:
        (results[n],) = _passed_on([results[n]], (), _marked, name=name, kind=_BY_HAND)
    return results


def _passed_on(results: Tensors, inputs: Tensors, gradient: Gradient, *, name: str, kind: str) -> list[tf.Tensor]:
    """Return ``results`` behind an operation whose gradient is ``gradient``.

    That is the gradient by ``inputs``; without these, by ``results``.
    """
    sources = inputs or results
    with stop_recording():
        if tf.executing_eagerly():
            # A tape finds what it has recorded by the identities of tensors.
            outputs = [tf.identity(t) for t in results]
        else:
            graph = tf.compat.v1.get_default_graph()
            registered = f"{kind}-{next(_numbers)}"
            with graph.gradient_override_map({"IdentityN": registered}):
                passed = tf.identity_n([*results, *inputs])
            outputs = passed[: len(results)]
            _register(registered, graph, _for_operation(gradient, len(results), bool(inputs)))
    # Of the results alone: a tape makes zeros for everything that is recorded and has no gradient.
    record_operation(name, outputs, sources, gradient)
    return outputs


def _for_operation(gradient: Gradient, results: int, has_inputs: bool) -> Gradient:
    """Return ``gradient`` for an operation that is given the results, and the inputs behind them."""

    def of_operation(*output_gradients: Any) -> Gradients:
        found = gradient(*output_gradients[:results])
        return [*([None] * results), *found] if has_inputs else found

    return of_operation


def _marked(output_gradient: Any) -> list[tf.Tensor]:
    """Return the gradient of an output with a mark: TensorFlow asks for none where it has none."""
    # A tensor of its own: TensorFlow keeps one tensor of zeros for all who need zeros.
    marked = tf.identity(densify(output_gradient))
    setattr(marked, _ASKED, True)
    return [marked]


def _has_gradient(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def custom_vjp_twice(
    compute: Callable[[], Sequence[tf.Tensor]],
    gradient: Callable[[Tensors, Tensors, Sequence[tf.Tensor | None]], Gradients],
    again: Callable[[Tensors, Tensors], Tensors],
    *,
    inputs: Tensors,
    count: int,
    name: str,
    tells_apart: bool = False,
) -> list[tf.Tensor]:
    """As ``custom_vjp``, for a gradient that is not to be differentiated operation by operation.

    ``compute()`` returns ``count`` results, then what else the gradient reads. ``gradient(inputs, made, result_gradients)``
    is given the inputs and all that was computed, as tensors of the graph that it is called in, and returns one tensor or
    None per input. ``again(inputs, made)`` returns the results anew, by operations that can be differentiated twice and
    more; only derivatives of the gradient ask for it. With ``tells_apart`` the gradient of a result that nobody
    differentiates is None, else zeros.
    """
    made: list[tf.Tensor] = []

    def differentiable_gradient(*output_gradients: tf.Tensor | None, asked: Collection[int] | None = None) -> Gradients:
        given = output_gradients[:count]
        incoming = given if asked is None else only_requested(given, asked)
        return differentiable_vjp(gradient, again, inputs, made, incoming, name=name)

    outputs = count if tells_apart else 0
    made[:] = custom_vjp(compute, differentiable_gradient, inputs=inputs, name=name, outputs=outputs)
    return made[:count]


def only_requested(output_gradients: Sequence[tf.Tensor | None], asked: Collection[int]) -> list[tf.Tensor | None]:
    """Return ``output_gradients``, with None where the number of an output is not ``asked``."""
    return [dy if n in asked else None for n, dy in enumerate(output_gradients)]


def differentiable_vjp(
    gradient: Callable[[Tensors, Tensors, Sequence[tf.Tensor | None]], Gradients],
    again: Callable[[Tensors, Tensors], Tensors],
    inputs: Tensors,
    made: Tensors,
    output_gradients: Sequence[tf.Tensor | None],
    *,
    name: str,
) -> Gradients:
    """Return ``gradient(inputs, made, output_gradients)``, whose own derivative is that of ``again``.

    See ``custom_vjp_twice``.
    """
    # The gradient may be asked for in another graph than the results were, and its own derivative in yet another.
    given, known = [in_default_graph(t) for t in inputs], [in_default_graph(t) for t in made]
    incoming = [dy if dy is None else in_default_graph(dy) for dy in output_gradients]
    found: list[tf.Tensor | tf.IndexedSlices | None] = []

    def backward() -> Tensors:
        found[:] = gradient(given, known, incoming)
        return [values_of(g) for g in found if g is not None]

    def gradient_of_gradient(*outer: tf.Tensor) -> Gradients:
        remaining = iter(outer)
        aligned: list[tf.Tensor | None] = []
        for g in found:
            ddx = None if g is None else next(remaining)
            is_sparse = ddx is not None and isinstance(g, tf.IndexedSlices)
            aligned.append(_derivative_of_sum(ddx, g) if is_sparse else ddx)
        here = [in_default_graph(t) for t in known]
        return _second_derivative(lambda *values: again(values, here), given, incoming, aligned)

    sources = [*given, *(dy for dy in incoming if dy is not None)]
    results = custom_vjp(backward, gradient_of_gradient, inputs=sources, name=name)
    values = iter(results)
    gradients: list[tf.Tensor | tf.IndexedSlices | None] = []
    for g in found:
        tensor = None if g is None else next(values)
        if isinstance(g, tf.IndexedSlices):
            # Not the rows through the results: they wait for no gradient, and have none.
            gradients.append(tf.IndexedSlices(tensor, g.indices, g.dense_shape))
        else:
            gradients.append(tensor)
    return gradients


def _derivative_of_sum(outer: tf.Tensor, slices: tf.IndexedSlices) -> tf.Tensor:
    """Return the derivative by the sum of ``slices``, given that by their values.

    Whatever reads the sum gives all slices of one row the same derivative.
    """
    rows = tf.expand_dims(in_default_graph(slices.indices), 1)
    shape = tf.cast(in_default_graph(slices.dense_shape), tf.int32)
    return tf.tensor_scatter_nd_update(tf.zeros(shape, outer.dtype), rows, outer)


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
    wanted = [(densify(g), ddx) for g, ddx in zip(first, outer) if g is not None and ddx is not None]
    sources = [*inputs, *(dy for dy in incoming if dy is not None)]
    return tf.gradients([g for g, _ in wanted], sources, grad_ys=[ddx for _, ddx in wanted], unconnected_gradients="none")


def in_vectorized_map() -> bool:
    """Whether a gradient of our own would be lost here, so that what has one is to be written without.

    That is in the body of a vectorised map: TensorFlow writes its operations once more for all elements, with the gradients
    of their types, and a tape around the map would miss those that it leaves as they are, since they do not depend on the
    element. A loop whose gradient was taken once already could not be differentiated there at all.
    """
    return not tf.executing_eagerly() and is_in_vectorized_body(tf.compat.v1.get_default_graph())


def is_checkpointed_call(operation: tf.Operation) -> bool:
    """Whether ``operation`` carries the gradient of a checkpointed function."""
    return operation.type == "IdentityN" and _registered_name(operation).startswith(_CHECKPOINT)


def has_custom_gradient(operation: tf.Operation) -> bool:
    """Whether the gradient of ``operation`` is one that ``custom_vjp`` registered."""
    return _registered_name(operation).startswith((_CHECKPOINT, _BY_HAND))


def _registered_name(operation: tf.Operation) -> str:
    return operation.node_def.attr[GRADIENT].s.decode()


class ForwardModeError(UnsupportedError):
    """A ``tf.autodiff.ForwardAccumulator`` watches what a gradient of our own is to be written for."""


def refuse_forward_mode(inputs: Sequence[tf.Tensor], name: str) -> None:
    """Raise ForwardModeError if a ``tf.autodiff.ForwardAccumulator`` watches one of ``inputs``."""
    if has_tangents(inputs):
        raise ForwardModeError(
            "forward-mode differentiation (tf.autodiff.ForwardAccumulator) of the checkpointed "
            f"{name!r} is not supported: it has no backward pass to keep values for. Call the "
            "plain function, which is its __wrapped__."
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
                f"{operation and operation.name!r} was copied out of the graph that knows its "
                "gradient. Differentiate before the graph is copied, or save it with its "
                "gradients (tf.saved_model.SaveOptions(experimental_custom_gradients=True), the "
                "default)."
            )
        return getattr(here, _ATTRIBUTE)[name](*output_gradients)

    weakref.finalize(graph, unregister_gradient, name).atexit = False
