"""What traced functions of JAX do: whether two do the same, and which types one reads.

Each has arguments and captured arrays of its own. Their jaxprs are compared equation by equation.
A custom derivative is a Python function that JAX wraps anew at each trace. Where a jaxpr has one,
the jaxprs of the gradients are compared too, in which it has been applied.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import filterfalse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jax.extend.linear_util import WrappedFun

from .jax_fence import is_differentiable


def do_the_same(first: Any, second: Any) -> bool:
    """Return whether two closed jaxprs are equal but for the arrays that they capture."""
    comparison = _Comparison()
    if not comparison.equal(first.jaxpr, second.jaxpr):
        return False
    if not comparison.has_functions:
        return True
    gradients = _Comparison()
    return gradients.equal(_gradient_of(first).jaxpr, _gradient_of(second).jaxpr)


def narrower_types_read(closed: Any) -> dict[int, Any]:
    """Return the type to which a captured array is cast, by its place, if nothing else reads it.

    Only casts to fewer bytes count, as those of weights under mixed precision. An array that is
    cast twice is left out: its two gradients are added in its own, wider type.
    """
    readers = defaultdict(list)
    for equation in closed.jaxpr.eqns:
        for variable in filterfalse(_is_literal, equation.invars):
            readers[variable].append(equation)
    results = set(filterfalse(_is_literal, closed.jaxpr.outvars))
    found = {}
    for place, variable in enumerate(closed.jaxpr.constvars):
        if len(readers[variable]) != 1 or variable in results:
            continue
        (reader,) = readers[variable]
        if _is_narrowing(reader, variable.aval.dtype):
            found[place] = reader.params["new_dtype"]
    return found


def _is_literal(value: Any) -> bool:
    return isinstance(value, Literal)


def _is_narrowing(equation: Any, dtype: Any) -> bool:
    """Whether it casts numbers of ``dtype`` to a type of fewer bytes."""
    if equation.primitive.name != "convert_element_type":
        return False
    new = equation.params["new_dtype"]
    are_floating = all(jnp.issubdtype(each, jnp.floating) for each in (new, dtype))
    return are_floating and new.itemsize < dtype.itemsize


def _gradient_of(closed: Any) -> Any:
    """Return the jaxpr of the gradient of a closed one, by its arguments and captured arrays."""
    count = len(closed.jaxpr.invars)
    # JAX refuses gradients of constants that a function with a custom derivative closes over.
    may_vary = list(range(count))
    for number, value in enumerate(closed.consts, count):
        if isinstance(value, jax.core.Tracer):
            may_vary.append(number)

    def gradient(*values: Any) -> Any:
        numbers = [n for n in may_vary if is_differentiable(values[n])]

        def outputs(*chosen: Any) -> list[Any]:
            every = list(values)
            for number, value in zip(numbers, chosen):
                every[number] = value
            with_arrays = closed.replace(consts=every[count:])
            made = jaxpr_as_fun(with_arrays)(*every[:count])
            return [value for value in made if is_differentiable(value)]

        made, pull_back = jax.vjp(outputs, *(values[number] for number in numbers))
        return pull_back(list(map(jnp.ones_like, made)))

    arguments = []
    for variable in (*closed.jaxpr.invars, *closed.jaxpr.constvars):
        arguments.append(jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype))
    return jax.make_jaxpr(gradient)(*arguments)


class _Comparison:
    """A comparison of jaxprs; ``has_functions`` says whether some parameters are functions."""

    def __init__(self) -> None:
        self.has_functions = False

    def equal(self, first: Jaxpr, second: Jaxpr) -> bool:
        """Return whether the jaxprs have equal equations between values at equal places."""
        numbers: tuple[dict[Any, int], dict[Any, int]] = ({}, {})

        def bind(ours: Any, theirs: Any) -> bool:
            if len(ours) != len(theirs):
                return False
            for a, b in zip(ours, theirs):
                if a.aval != b.aval:
                    return False
                numbers[0][a] = numbers[1][b] = len(numbers[0])
            return True

        def same(a: Any, b: Any) -> bool:
            if isinstance(a, Literal) or isinstance(b, Literal):
                both = isinstance(a, Literal) and isinstance(b, Literal)
                return both and a.aval == b.aval and _same_elements(a.val, b.val)
            return numbers[0][a] == numbers[1][b]

        def all_same(ours: Any, theirs: Any) -> bool:
            return len(ours) == len(theirs) and all(map(same, ours, theirs))

        if len(first.eqns) != len(second.eqns) or first.effects != second.effects:
            return False
        if not bind(first.constvars, second.constvars) or not bind(first.invars, second.invars):
            return False
        for a, b in zip(first.eqns, second.eqns):
            if a.primitive is not b.primitive or not all_same(a.invars, b.invars):
                return False
            if not self._same_parameters(a.params, b.params) or not bind(a.outvars, b.outvars):
                return False
        return all_same(first.outvars, second.outvars)

    def _same_parameters(self, first: Any, second: Any) -> bool:
        return first.keys() == second.keys() and all(
            self._same_parameter(first[name], second[name]) for name in first
        )

    def _same_parameter(self, a: Any, b: Any) -> bool:
        if a is b:
            return True
        if type(a) is not type(b):
            return False
        if isinstance(a, Jaxpr):
            return self.equal(a, b)
        if isinstance(a, ClosedJaxpr):
            arrays = len(a.consts) == len(b.consts) and all(map(_same_elements, a.consts, b.consts))
            return arrays and self.equal(a.jaxpr, b.jaxpr)
        if isinstance(a, (tuple, list)):
            return len(a) == len(b) and all(map(self._same_parameter, a, b))
        if isinstance(a, np.ndarray):
            return _same_elements(a, b)
        if callable(a) or isinstance(a, WrappedFun):
            self.has_functions = True
            return True
        return bool(a == b)


def _same_elements(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return False
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))
