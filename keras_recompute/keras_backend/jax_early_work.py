"""Early work on JAX: what XLA would begin while the checkpointed call before still runs.

A call reads what follows from the results of the call before, and may read older values, such as a
condition that every block reads, or the seed of its dropout. XLA would compute their products and
draw their masks in front of all calls (XLA for GPUs joins products of up to 32 MiB into one), and
hold the results of all calls. So what a call computes of older values alone waits for the call
before. On a TPU nothing waits, since its compiler begins none of it early.

``engine.emit.early_work`` is the same for TensorFlow, and says what it gains.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import jax
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

from ..seams.jax.tracing import maker, makers_before, varying_axes
from .jax_fence import is_differentiable, read_after

PRODUCTS = {"dot_general", "conv_general_dilated", "ragged_dot_general"}
_LOOPS = {"scan", "while"}
_DRAWS = {"random_bits", "threefry2x32", "rng_bit_generator"}
# Numbers of the arguments that a value follows from; None if one that is awaited is among them.
Origins = frozenset[int] | None
_NONE: frozenset[int] = frozenset()


class _Trace(threading.local):
    """Equations that this thread has traced, by their identities, since they have no hash.

    Attributes:
        last_call: Those that made the results of the last call.
        met: Those that a search has met since then.
        older: Those that searches had met before. They cannot follow from the last call.
    """

    def __init__(self) -> None:
        self.last_call, self.met, self.older = _Equations(), _Equations(), _Equations()


_Equations = WeakValueDictionary[int, Any]
_trace = _Trace()


def last_call() -> _Equations:
    """Return the equations that made the results of the last checkpointed call."""
    return _trace.last_call


def note_call(results: Iterable[Any]) -> None:
    """Note the ``results`` of a checkpointed call."""
    _trace.older.update(_trace.met)
    _trace.met.clear()
    made_by = filter(None, map(maker, results))
    _trace.last_call = _Equations((id(equation), equation) for equation in made_by)


class EarlyWork:
    """What a call of a function with these arguments would begin early.

    Args:
        jaxpr: What it computes.
        given: The arguments and captured arrays that it reads, in this order.
        before: The last call, as it was before this one was traced.
    """

    def __init__(self, jaxpr: Jaxpr, given: Sequence[jax.Array], before: _Equations) -> None:
        self._awaited: list[int] = []
        self._early: list[int] = []
        if not before:
            return
        following = [number for number, value in enumerate(given) if _follows(value, before)]
        self._awaited = [number for number in following if is_differentiable(given[number])]
        if self._awaited:
            awaited = [given[number] for number in self._awaited]
            may_wait = {number for number, value in enumerate(given) if _may_wait(value, awaited)}
            self._early = early_arguments(jaxpr, following, may_wait)

    def delayed(self, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Return ``values``, its arguments, of which early ones wait for those that follow."""
        awaited = [values[number] for number in self._awaited]
        waiting = list(values)
        for number in self._early:
            waiting[number] = read_after(values[number], awaited)
        return waiting


def _follows(value: Any, before: _Equations) -> bool:
    """Whether ``value`` follows from what the equations ``before`` made."""
    is_found = False
    met: dict[int, Any] = {}
    waiting = list(filter(None, [maker(value)]))
    while waiting:
        equation = waiting.pop()
        number = id(equation)
        if number in before:
            is_found = True
        elif number not in met and number not in _trace.older:
            met[number] = equation
            waiting.extend(makers_before(equation))
    # None of these can follow from a call that is traced later.
    _trace.met.update(met)
    return is_found


def _may_wait(value: jax.Array, awaited: Sequence[jax.Array]) -> bool:
    """Whether ``value`` keeps its type if it waits for those ``awaited``."""
    if not isinstance(jax.typeof(value), jax.core.ShapedArray):
        return False  # such as a reference to a mutable array
    # Inside jax.shard_map the type has the axes along which a value varies.
    return frozenset().union(*map(varying_axes, awaited)) <= varying_axes(value)


def early_arguments(
    jaxpr: Jaxpr, following: Collection[int], may_wait: Collection[int]
) -> list[int]:
    """Return the numbers of the arguments that have to wait, so that no work runs ahead.

    Products, loops and random draws could run ahead that read nothing of the arguments
    ``following``. A product counts if its result is no smaller than one of the arrays that it
    reads. Of the arguments that it follows from and that ``may_wait``, the smallest one waits.
    Captured arrays are numbered behind the arguments.
    """
    variables = [*jaxpr.invars, *jaxpr.constvars]
    early: set[int] = set()

    def smallest(origins: Iterable[int]) -> int:
        return min(sorted(origins), key=lambda number: _size(variables[number]))

    def visit(jaxpr: Jaxpr, given: Sequence[Origins]) -> list[Origins]:
        known: dict[Any, Origins] = dict(zip([*jaxpr.invars, *jaxpr.constvars], given))

        def origins_of(variable: Any) -> Origins:
            # Numbers that are written into a jaxpr have no hash.
            return _NONE if isinstance(variable, Literal) else known.get(variable, _NONE)

        for equation in jaxpr.eqns:
            read = list(map(origins_of, equation.invars))
            inner = _called(equation)
            if inner is not None:
                known.update(zip(equation.outvars, visit(inner, read)))
                continue
            older = [origins for origins in read if origins is not None]
            origins = _NONE.union(*older) if len(older) == len(read) else None
            known.update(dict.fromkeys(equation.outvars, origins))
            if origins and _is_work(equation):
                early.add(smallest(origins))
        return list(map(origins_of, jaxpr.outvars))

    origins: list[Origins] = []
    for number in range(len(variables)):
        of_itself = frozenset([number]) if number in may_wait else _NONE
        origins.append(None if number in following else of_itself)
    visit(jaxpr, origins)
    return sorted(early)


def _called(equation: Any) -> Jaxpr | None:
    """Return the jaxpr that ``equation`` calls once with its own operands, if it does."""
    inner = list(jaxprs_in_params(equation.params))
    if len(inner) != 1 or equation.primitive.name in _LOOPS:
        return None
    return inner[0] if len(inner[0].invars) == len(equation.invars) else None


def _is_work(equation: Any) -> bool:
    """Whether it is a loop, a random draw, or a product as large as one of its operands."""
    name = equation.primitive.name
    if name in _LOOPS or name in _DRAWS:
        return True
    return name in PRODUCTS and _size(equation.outvars[0]) >= min(map(_size, equation.invars))


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)
