"""Convolutions in the form that XLA for CPUs has a fast kernel for, on JAX.

Images are ``(batch, *space, features)`` there, and kernels ``(*space, in, out)``. XLA brings
convolutions of other forms, such as gradients, into this one, but only outside of branches and
loops: a gradient of a kernel in a branch took 2.3 s where it takes 0.06. Values are the same to
the bit. ``engine.kernels.convolutions`` is the same for TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, jaxpr_as_fun

from .jax_equations import equations_of, has_equation_of, with_equations_replaced

Function = Callable[..., Any]
_CONVOLUTION = jax.lax.conv_general_dilated_p


def has_convolutions(jaxpr: Jaxpr) -> bool:
    """Whether ``jaxpr`` convolves."""
    return has_equation_of(jaxpr, _CONVOLUTION)


def with_fast_convolutions(function: Function) -> Function:
    """Return ``function`` of pytrees of arrays, whose convolutions all have the fast form."""

    def run(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)

        def flat(*leaves: jax.Array) -> Any:
            return function(*structure.unflatten(leaves))

        traced, results = jax.make_jaxpr(flat, return_shape=True)(*leaves)
        fast = with_equations_replaced(traced, _is_convolution, _fast_convolution)
        made = jaxpr_as_fun(fast)(*leaves)
        return jax.tree.structure(results).unflatten(made)

    return run


def _is_convolution(equation: Any) -> bool:
    return equation.primitive is _CONVOLUTION


def _fast_convolution(equation: Any) -> list[Any]:
    """Return the equations that convolve in the fast form, with transposes around it.

    A depthwise convolution takes few products for each element, and the fast kernel is made for
    many. It is written in a form that becomes plain loops, which are 10 to 50 times faster.
    """
    given = equation.params["dimension_numbers"]
    image, kernel = (each.aval for each in equation.invars)
    groups = equation.params["feature_group_count"]
    of_batch = equation.params["batch_group_count"]  # more than one in gradients of kernels
    if of_batch > 1:
        is_depthwise = image.shape[given.lhs_spec[0]] == of_batch
    else:
        is_depthwise = groups > 1 and kernel.shape[given.rhs_spec[1]] == 1
    fast = _form(len(given.lhs_spec) - 2, kernel_first=is_depthwise)
    if given == fast and of_batch == 1:
        return [equation]

    def convolve(image: jax.Array, kernel: jax.Array) -> jax.Array:
        image = _moved(image, given.lhs_spec, fast.lhs_spec)
        kernel = _moved(kernel, given.rhs_spec, fast.rhs_spec)
        parameters = {**equation.params, "dimension_numbers": fast}
        if of_batch > 1:  # XLA would compute products between all groups
            image = _with_groups_of_features(image, of_batch)
            parameters |= {"batch_group_count": 1, "feature_group_count": of_batch}
        found = _CONVOLUTION.bind(image, kernel, **parameters)
        return _moved(found, fast.out_spec, given.out_spec)

    return equations_of(convolve, equation)


def _form(rank: int, *, kernel_first: bool) -> jax.lax.ConvDimensionNumbers:
    """Return the form with kernels ``(*space, in, out)``, or ``(in, *space, out)``."""
    images = 0, rank + 1, *range(1, rank + 1)
    kernels = (0, *range(1, rank + 1)) if kernel_first else (rank, *range(rank))
    return jax.lax.ConvDimensionNumbers(images, (rank + 1, *kernels), images)


def _with_groups_of_features(image: jax.Array, groups: int) -> jax.Array:
    """Return ``image``, ``(groups * n, *space, m)``, as one of ``(n, *space, groups * m)``."""
    batch, *space, features = image.shape
    parts = jnp.moveaxis(image.reshape(groups, batch // groups, *space, features), 0, -2)
    return parts.reshape(batch // groups, *space, groups * features)


def _moved(value: jax.Array, before: Sequence[int], after: Sequence[int]) -> jax.Array:
    """Return ``value``, whose dimensions that stood ``before`` stand where ``after`` says."""
    places = dict(zip(after, before))
    return jnp.transpose(value, [places[place] for place in range(value.ndim)])
