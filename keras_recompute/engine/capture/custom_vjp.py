"""Custom gradients (custom VJPs) for a part of the graph under construction.

``tf.custom_gradient`` does the same in graph mode, with a leak: it enters every use into a registry
of the process that is never emptied, and keeps the graph alive with it. Here an entry looks up its
gradient function in the graph, and is removed with the graph. Every use has an entry of its own,
because a SavedModel stores one gradient per entry.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Union

import tensorflow as tf

from ...errors import InvalidProgramError, UnsupportedError
from ...seams.tensorflow.gradients import (
    has_tangents,
    record_operation,
    stop_recording,
    unregister_gradient,
)
from ...seams.tensorflow.operations import GRADIENT
from ...seams.tensorflow.vectorized_map import is_in_vectorized_body
from ..graph.captures import capture_all, capture_known, in_default_graph
from ..graph.dataflow import is_differentiable, map_present, present
from ..graph.graph_state import kept_with
from ..graph.sparse_gradients import densify, values_of

Tensors = Sequence[tf.Tensor]
Gradients = Sequence[Union[tf.Tensor, tf.IndexedSlices, None]]
Gradient = Callable[..., Gradients]


_CHECKPOINT, _BY_HAND = (
    "KerasRecompute",
    "GradientByHand",
)  # what the names of registered gradients begin with
_ATTRIBUTE = "_keras_recompute_gradients"
# Attribute of the gradient of an output that is asked for.
_ASKED = "_keras_recompute_asked"
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
    gives it zeros for a result that is not differentiated. With ``outputs`` it also takes
    ``requested``: the numbers of those among the first ``outputs`` results that are differentiated.
    In a graph all ``inputs`` must be tensors of the default graph.

    ``is_checkpoint`` is what ``is_checkpointed_call`` answers later. Raises UnsupportedError under
    ``tf.autodiff.ForwardAccumulator``.
    """
    refuse_forward_mode(inputs, name)
    # A tape would differentiate a part of what compute does, and not see another part at all.
    with stop_recording():
        results = list(compute())

    differentiable = [n for n, t in enumerate(results[:outputs]) if is_differentiable(t)]
    # A gradient function of a single output runs only if that is asked for.
    told_apart = differentiable if len(differentiable) > 1 else []

    def of_tensors(*output_gradients: Any) -> Gradients:
        given = map_present(densify, output_gradients)
        if not outputs:
            return gradient(*given)
        marked = [n for n in told_apart if getattr(output_gradients[n], _ASKED, False)]
        # No mark is left where TensorFlow runs gradients as a function of its own, such as a loaded
        # one: all of them are asked for then.
        return gradient(*given, requested=frozenset(marked or differentiable))

    kind = _CHECKPOINT if is_checkpoint else _BY_HAND
    results = _passed_on(results, inputs, of_tensors, name=name, kind=kind)
    for n in told_apart:
        (results[n],) = _passed_on([results[n]], (), _marked, name=name, kind=_BY_HAND)
    return results


def _passed_on(
    results: Tensors, inputs: Tensors, gradient: Gradient, *, name: str, kind: str
) -> list[tf.Tensor]:
    """Return ``results`` through an operation whose gradient is ``gradient``.

    It is the gradient with respect to ``inputs``, or to ``results`` without any.
    """
    sources = inputs or results
    with stop_recording():
        if tf.executing_eagerly():
            # A tape finds what it has recorded by the identities of tensors.
            outputs = list(map(tf.identity, results))
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
    """Return ``gradient`` for an operation whose inputs are the results, then the inputs."""

    def of_operation(*output_gradients: Any) -> Gradients:
        found = gradient(*output_gradients[:results])
        return [*([None] * results), *found] if has_inputs else found

    return of_operation


def _marked(output_gradient: Any) -> list[tf.Tensor]:
    """Return the gradient of an output with a mark, which shows that it is asked for.

    TensorFlow calls no gradient function of an output that is not differentiated.
    """
    # A tensor of its own: TensorFlow keeps one tensor of zeros for all who need zeros.
    marked = tf.identity(densify(output_gradient))
    setattr(marked, _ASKED, True)
    return [marked]


def custom_vjp_twice(
    compute: Callable[[], Sequence[tf.Tensor]],
    gradient: Callable[[Tensors, Tensors, Sequence[tf.Tensor | None]], Gradients],
    recompute_primal: Callable[[Tensors, Tensors], Tensors],
    *,
    inputs: Tensors,
    count: int,
    name: str,
    tells_apart: bool = False,
) -> list[tf.Tensor]:
    """As ``custom_vjp``, for a gradient that is differentiated by way of ``recompute_primal``.

    ``compute()`` returns ``count`` results, then what else the gradient reads. ``gradient(inputs,
    made, result_gradients)`` is given the inputs and all that was computed, as tensors of the graph
    that it is called in, and returns one tensor or None per input. ``recompute_primal(inputs,
    made)`` returns the results again, by operations that can be differentiated any number of times.
    Only derivatives of the gradient call it. With ``tells_apart`` the gradient of a result that is
    not differentiated is None, else zeros.
    """
    made: list[tf.Tensor] = []

    def differentiable_gradient(
        *output_gradients: tf.Tensor | None, requested: Collection[int] | None = None
    ) -> Gradients:
        given = output_gradients[:count]
        incoming = given if requested is None else only_requested(given, requested)
        return differentiable_vjp(gradient, recompute_primal, inputs, made, incoming, name=name)

    outputs = count if tells_apart else 0
    made[:] = custom_vjp(
        compute, differentiable_gradient, inputs=inputs, name=name, outputs=outputs
    )
    return made[:count]


def only_requested(
    output_gradients: Sequence[tf.Tensor | None], requested: Collection[int]
) -> list[tf.Tensor | None]:
    """Return ``output_gradients``, with None for outputs whose number is not ``requested``."""
    return [dy if n in requested else None for n, dy in enumerate(output_gradients)]


def differentiable_vjp(
    gradient: Callable[[Tensors, Tensors, Sequence[tf.Tensor | None]], Gradients],
    recompute_primal: Callable[[Tensors, Tensors], Tensors],
    inputs: Tensors,
    made: Tensors,
    output_gradients: Sequence[tf.Tensor | None],
    *,
    name: str,
) -> Gradients:
    """Return ``gradient(inputs, made, output_gradients)``, which can be differentiated.

    The arguments are those of ``custom_vjp_twice``.
    """
    # The gradient may be asked for in another graph than the results were, and its own derivative
    # in yet another.
    given, known = capture_all(inputs), capture_all(made)
    incoming = capture_known(output_gradients)
    found: list[tf.Tensor | tf.IndexedSlices | None] = []

    def backward() -> Tensors:
        found[:] = gradient(given, known, incoming)
        return list(map(values_of, present(found)))

    def gradient_of_gradient(*outer: tf.Tensor) -> Gradients:
        remaining = iter(outer)
        aligned: list[tf.Tensor | None] = []
        for g in found:
            ddx = None if g is None else next(remaining)
            is_sparse = ddx is not None and isinstance(g, tf.IndexedSlices)
            aligned.append(_derivative_of_sum(ddx, g) if is_sparse else ddx)
        here = capture_all(known)
        return _second_derivative(
            lambda *values: recompute_primal(values, here), given, incoming, aligned
        )

    sources = [*given, *present(incoming)]
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
    """Return the derivative with respect to the sum of ``slices``, given that for their values.

    What reads the sum gives the same derivative to all slices of a row.
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

    Returns the gradients of the inputs, then of the ``output_gradients`` that are not None.
    """
    inputs = list(map(tf.identity, capture_all(inputs)))
    incoming = map_present(tf.identity, capture_known(output_gradients))
    first = _differentiate(function(*inputs), inputs, incoming)
    known: list[tf.Tensor | None] = []
    for g, ddx in zip(first, outer):
        known.append(None if g is None or ddx is None else densify(g))
    return _differentiate(known, [*inputs, *present(incoming)], outer)


def _differentiate(
    outputs: Sequence[tf.Tensor | None],
    inputs: Sequence[tf.Tensor],
    output_gradients: Sequence[tf.Tensor | None],
) -> list[tf.Tensor | None]:
    """Return the gradients of ``inputs``, from the outputs that have a gradient."""
    wanted, incoming = [], []
    for output, gradient in zip(outputs, output_gradients):
        if output is not None and gradient is not None:
            wanted.append(output)
            incoming.append(gradient)
    return tf.gradients(wanted, inputs, grad_ys=incoming, unconnected_gradients="none")


def in_vectorized_map() -> bool:
    """Whether this is the body of a vectorized map, where a custom gradient would be lost.

    TensorFlow writes the body's operations once more for all elements, with the gradients of their
    types. Operations that do not depend on the element stay as they are, and a tape around the map
    would miss them. A loop that was differentiated already could not be differentiated there again.
    """
    return not tf.executing_eagerly() and is_in_vectorized_body(tf.compat.v1.get_default_graph())


def is_checkpointed_call(operation: tf.Operation) -> bool:
    """Whether ``operation`` carries the gradient of a checkpointed function."""
    return operation.type == "IdentityN" and _registered_name(operation).startswith(_CHECKPOINT)


def has_custom_gradient(operation: tf.Operation) -> bool:
    """Whether the gradient of ``operation`` was registered by ``custom_vjp``."""
    return _registered_name(operation).startswith((_CHECKPOINT, _BY_HAND))


def _registered_name(operation: tf.Operation) -> str:
    return operation.node_def.attr[GRADIENT].s.decode()


class ForwardModeError(UnsupportedError):
    """A ``tf.autodiff.ForwardAccumulator`` watches an input of a custom gradient."""


def refuse_forward_mode(inputs: Sequence[tf.Tensor], name: str) -> None:
    """Raise ForwardModeError if a ``tf.autodiff.ForwardAccumulator`` watches an input."""
    if has_tangents(inputs):
        raise ForwardModeError(
            "forward-mode differentiation (tf.autodiff.ForwardAccumulator) of the checkpointed "
            f"{name!r} is not supported: it has no backward pass to keep values for. Call the "
            "plain model, or the __wrapped__ of what kr.checkpoint returned"
        )


def _register(name: str, graph: Any, gradient: Gradient) -> None:
    """Enter a gradient for one operation of ``graph`` into TensorFlow's registry.

    The entry is removed with the graph.
    """
    kept_with(graph, _ATTRIBUTE)[name] = gradient
    # TensorFlow's registry lives as long as the process, so it must not keep the graph.
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
