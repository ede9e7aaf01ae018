"""Convolutions in the form that XLA for CPUs has a fast kernel for, on JAX.

Images are ``(batch, *space, features)`` there, and kernels ``(*space, in, out)``. XLA brings
convolutions of other forms, such as gradients, into this one, but only outside of branches and
loops: a gradient of a kernel in a branch took 2.3 s where it takes 0.06. Values are the same to
the bit. ``engine.kernels.convolutions`` is the same for TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

Function = Callable[..., Any]
_CONVOLUTION = jax.lax.conv_general_dilated_p


def fast_form_for(traced: ClosedJaxpr) -> Callable[[Function], Function]:
    """Return what gives gradients of ``traced`` fast convolutions; the identity if it has none."""
    return _with_fast_convolutions if _has_convolutions(traced.jaxpr) else _as_it_is


def _as_it_is(function: Function) -> Function:
    return function


def _with_fast_convolutions(function: Function) -> Function:
    """Return ``function`` of pytrees of arrays, whose convolutions all have the fast form."""

    def run(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)

        def flat(*leaves: jax.Array) -> Any:
            return function(*structure.unflatten(leaves))

        traced, results = jax.make_jaxpr(flat, return_shape=True)(*leaves)
        made = jaxpr_as_fun(_in_fast_form(traced))(*leaves)
        return jax.tree.structure(results).unflatten(made)

    return run


def _has_convolutions(jaxpr: Jaxpr) -> bool:
    for equation in jaxpr.eqns:
        if equation.primitive is _CONVOLUTION:
            return True
        if any(map(_has_convolutions, _inner(tuple(equation.params.values())))):
            return True
    return False


def _inner(value: Any) -> Iterator[Jaxpr]:
    """Yield the jaxprs among parameters of an equation."""
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _inner(each)


def _in_fast_form(value: Any) -> Any:
    """Return a parameter of an equation; in a jaxpr all convolutions have the fast form."""
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=_in_fast_form(value.jaxpr))
    if isinstance(value, Jaxpr):
        equations = []
        for equation in value.eqns:
            if equation.primitive is _CONVOLUTION:
                equations += _fast_convolution(equation)
            else:
                parameters = {name: _in_fast_form(each) for name, each in equation.params.items()}
                equations.append(equation.replace(params=parameters))
        return value.replace(eqns=equations)
    if type(value) in (tuple, list):
        return type(value)(map(_in_fast_form, value))
    return value


def _fast_convolution(equation: Any) -> list[Any]:
    """Return the equations that convolve in the fast form, with transposes around it.

    A depthwise convolution takes few products for each element, and the fast kernel is made for
    many. It is written in a form that becomes plain loops, which are 10 to 50 times faster.
    """
    given = equation.params["dimension_numbers"]
    rank = len(given.lhs_spec) - 2
    groups, kernel = equation.params["feature_group_count"], equation.invars[1].aval
    is_depthwise = groups > 1 and kernel.shape[given.rhs_spec[1]] == 1
    kernel_in = 0 if is_depthwise else rank
    space = tuple(range(1, rank + 1))
    kernel_space = space if is_depthwise else range(rank)
    images = 0, rank + 1, *space
    fast = jax.lax.ConvDimensionNumbers(images, (rank + 1, kernel_in, *kernel_space), images)
    if given == fast or equation.params["batch_group_count"] > 1:
        return [equation]

    def convolve(image: jax.Array, kernel: jax.Array) -> jax.Array:
        image = _moved(image, given.lhs_spec, fast.lhs_spec)
        kernel = _moved(kernel, given.rhs_spec, fast.rhs_spec)
        parameters = {**equation.params, "dimension_numbers": fast}
        found = _CONVOLUTION.bind(image, kernel, **parameters)
        return _moved(found, fast.out_spec, given.out_spec)

    traced = jax.make_jaxpr(convolve)(*(each.aval for each in equation.invars))
    return _in_place_of(equation, traced.jaxpr)


def _moved(value: jax.Array, before: Sequence[int], after: Sequence[int]) -> jax.Array:
    """Return ``value``, whose dimensions that stood ``before`` stand where ``after`` says."""
    places = dict(zip(after, before))
    return jnp.transpose(value, [places[place] for place in range(value.ndim)])


def _in_place_of(equation: Any, jaxpr: Jaxpr) -> list[Any]:
    """Return the equations of ``jaxpr``, between the variables of ``equation``."""
    names = dict(zip(jaxpr.invars, equation.invars))
    names |= dict(zip(jaxpr.outvars, equation.outvars))

    def named(variables: Any) -> list[Any]:
        return [each if isinstance(each, Literal) else names.get(each, each) for each in variables]

    made = []
    for each in jaxpr.eqns:
        ends = {"invars": named(each.invars), "outvars": named(each.outvars)}
        made.append(each.replace(**ends, source_info=equation.source_info))
    return made
