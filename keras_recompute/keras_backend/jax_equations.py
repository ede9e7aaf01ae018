"""Equations of jaxprs, and others in their places."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Primitive, jaxprs_in_params


def has_equation_of(jaxpr: Jaxpr, primitive: Primitive) -> bool:
    """Whether ``jaxpr`` has an equation of ``primitive``, or a jaxpr in it has."""
    return any(
        equation.primitive is primitive or calls_equation_of(equation, primitive)
        for equation in jaxpr.eqns
    )


def calls_equation_of(equation: Any, primitive: Primitive) -> bool:
    """Whether a jaxpr that ``equation`` calls has an equation of ``primitive``."""
    return any(has_equation_of(jaxpr, primitive) for jaxpr in jaxprs_in_params(equation.params))


def names_marked(jaxpr: Jaxpr) -> Iterator[str]:
    """Yield the names that ``checkpoint_name`` gives to values in ``jaxpr`` and jaxprs in it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            yield equation.params["name"]
        for inner in jaxprs_in_params(equation.params):
            yield from names_marked(inner)


def with_equations_replaced(
    value: Any, is_replaced: Callable[[Any], bool], replace: Callable[[Any], list[Any]]
) -> Any:
    """Return a jaxpr with the equations of ``replace`` for each one that ``is_replaced``.

    Jaxprs that the others call are changed too. ``value`` is any parameter of an equation. A jaxpr
    without such equations comes back as the same object, so that JAX lowers it once for all calls.
    """

    def replaced(value: Any) -> Any:
        if isinstance(value, Jaxpr):  # first: from JAX 0.11 on both are of one class
            equations = []
            for equation in value.eqns:
                equations += replace(equation) if is_replaced(equation) else [inside(equation)]
            return value if _are_same(equations, value.eqns) else value.replace(eqns=equations)
        if isinstance(value, ClosedJaxpr):
            jaxpr = replaced(value.jaxpr)
            return value if jaxpr is value.jaxpr else value.replace(jaxpr=jaxpr)
        if type(value) in (tuple, list):
            made = type(value)(map(replaced, value))
            return value if _are_same(made, value) else made
        return value

    def inside(equation: Any) -> Any:
        parameters = {name: replaced(each) for name, each in equation.params.items()}
        if _are_same(parameters.values(), equation.params.values()):
            return equation
        return equation.replace(params=parameters)

    return replaced(value)


def _are_same(made: Iterable[Any], before: Iterable[Any]) -> bool:
    return all(map(operator.is_, made, before))


def equations_of(function: Callable[..., Any], equation: Any) -> list[Any]:
    """Return the equations of ``function`` of arrays, between the variables of ``equation``."""
    jaxpr = jax.make_jaxpr(function)(*(each.aval for each in equation.invars)).jaxpr
    names = dict(zip(jaxpr.invars, equation.invars))
    names |= dict(zip(jaxpr.outvars, equation.outvars))

    def named(variables: Any) -> list[Any]:
        return [each if isinstance(each, Literal) else names.get(each, each) for each in variables]

    made = []
    for each in jaxpr.eqns:
        ends = {"invars": named(each.invars), "outvars": named(each.outvars)}
        made.append(each.replace(**ends, source_info=equation.source_info))
    return made
