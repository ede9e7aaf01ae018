"""Random draws beside an exact gelu on a TPU, apart from what reads them.

XLA for TPUs puts what is between two products of a forward pass that keeps nothing into one kernel.
If a draw and the ``erf`` of an exact gelu are in it, it makes an array of every constant: 57 arrays
of the size of the activation for one block, where there was to be none. Behind a barrier what was
drawn is an array of its own, and the kernels are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params
from jax.extend.core.primitives import random_bits_p

from ..backends import TPU
from .jax_early_work import PRODUCTS
from .jax_equations import calls_equation_of, equations_of, with_equations_replaced
from .jax_fence import current_backend


def with_separate_draws(traced: Any) -> Any:
    """Return a closed jaxpr; for a TPU draws beside an ``erf`` stand behind barriers."""
    if current_backend() != TPU:
        return traced
    apart = _draws_beside_erf(traced.jaxpr)
    return with_equations_replaced(traced, lambda each: id(each) in apart, _behind_barrier)


def _draws_beside_erf(jaxpr: Jaxpr) -> set[int]:
    """Return identities of equations that draw, with no product between them and an ``erf``.

    Between in the order of the program, which is that of its layers.
    """
    found: set[int] = set()
    draws: set[int] = set()
    has_erf = False
    for equation in _in_order(jaxpr):
        if equation.primitive.name in PRODUCTS:
            draws, has_erf = set(), False
        elif equation.primitive in (jax.lax.erf_p, jax.lax.erfc_p):
            has_erf = True
        elif _is_draw(equation):
            draws.add(id(equation))
        if has_erf:
            found |= draws
    return found


def _in_order(jaxpr: Jaxpr) -> Iterator[Any]:
    """Yield the equations of ``jaxpr``, and those of what they call but for draws."""
    for equation in jaxpr.eqns:
        yield equation
        if not _is_draw(equation):
            for inner in jaxprs_in_params(equation.params):
                yield from _in_order(inner)


def _is_draw(equation: Any) -> bool:
    """Whether it draws, of a key and numbers alone, such as ``jax.random.bernoulli``.

    Of a mask the barrier then keeps booleans, and not the random bits behind them.
    """
    if equation.primitive is random_bits_p:
        return True
    is_of_numbers = all(not each.aval.shape for each in equation.invars)
    return is_of_numbers and calls_equation_of(equation, random_bits_p)


def _behind_barrier(equation: Any) -> list[Any]:
    def draw(*given: Any) -> Any:
        return jax.lax.optimization_barrier(equation.primitive.bind(*given, **equation.params))

    return equations_of(draw, equation)
