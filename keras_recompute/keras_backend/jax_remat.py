"""Recomputation of pure functions on JAX, so that the saving is real on every device.

``jax.checkpoint`` puts an optimization barrier before the replay. XLA for GPUs and TPUs keeps it
until it has scheduled. XLA for CPUs drops it before, merges the replay with the forward pass, and
saves nothing. There the replay stands in a branch instead. A branch is compiled on its own, so
nothing in it is merged or started early. Its predicate is always true, and no compiler can know
that: the first element of the incoming gradient is not one chosen NaN, which no arithmetic makes.

Sources: JAX's documentation of ``jax.checkpoint`` and ``jax.custom_vjp``; the branch is that of
``engine.passes.fence``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

# A quiet NaN whose payload no floating-point unit generates.
_NEVER = 0x7FD5_AA5A

Arrays = Sequence[jax.Array]
Function = Callable[..., list[jax.Array]]


named_scope = jax.named_scope


def same_state(_: Sequence[Any]) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context for replays that does nothing, since none runs Python."""
    return contextlib.nullcontext


def may_be_differentiated(values: Arrays) -> bool:
    """Whether what follows from ``values`` may be: without a trace nothing is differentiated."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


def snapshot(value: jax.Array) -> jax.Array:
    """Return ``value`` as it is now: arrays never change."""
    return value


def unshare(_: Any) -> None:
    """Do nothing: an assignment to a variable gives it another array."""


def recomputed(function: Function, *, name: str) -> Function:
    """Return ``function`` of arrays, whose intermediate values are made again for its gradient.

    ``function`` is pure and takes and returns a flat list of arrays. Gradients of any order are
    those of ``function``. On a CPU forward-mode differentiation is refused by JAX. ``name`` is the
    scope of the backward pass in the names of operations.
    """
    return _recomputed_in_branch(function, name) if _drops_barriers() else jax.checkpoint(function)


def _drops_barriers() -> bool:
    return jax.default_backend() == "cpu"


def _recomputed_in_branch(function: Function, name: str) -> Function:
    def run(*values: jax.Array) -> list[jax.Array]:
        # Python runs once, as under jax.checkpoint: what it changes is not changed again.
        traced, captured = jax.closure_convert(function, *values)
        return _with_fence(traced, name)(*values, *captured)

    return run


def _with_fence(function: Function, name: str) -> Function:
    """Return ``function``, which captures nothing, with its gradient behind the branch."""
    differentiated: list[int] = []  # numbers of the values by which it is, as JAX says

    def forward(*given: Any) -> tuple[list[jax.Array], tuple[jax.Array, ...]]:
        # Not by frozen weights and statistics: a branch would compute gradients that nobody reads.
        differentiated[:] = [number for number, each in enumerate(given) if each.perturbed]
        values = tuple(each.value for each in given)
        return function(*values), values

    def backward(values: tuple[jax.Array, ...], gradients: Sequence[Any]) -> tuple[Any, ...]:
        # Outputs that nothing differentiates have a symbolic zero, and are left out.
        asked = []
        for number, gradient in enumerate(gradients):
            if not isinstance(gradient, jax.custom_derivatives.SymbolicZero):
                asked.append(number)
        floating = [n for n in differentiated if is_differentiable(values[n])]
        found: list[Any] = [None] * len(values)
        if asked and floating:
            incoming = [gradients[number] for number in asked]
            with jax.named_scope(name):
                made = _fenced_gradients(function, values, incoming, asked, floating)
            for number, gradient in zip(floating, made):
                found[number] = gradient
        return tuple(found)

    fenced = jax.custom_vjp(function)
    fenced.defvjp(forward, backward, symbolic_zeros=True)
    return fenced


def _fenced_gradients(
    function: Function,
    values: Arrays,
    incoming: Arrays,
    asked: Sequence[int],
    floating: Sequence[int],
) -> list[jax.Array]:
    """Return the gradients of the ``floating`` values, computed once ``incoming`` are there.

    ``incoming`` are those of the outputs ``asked``.
    """

    def gradients(values: Arrays, incoming: Arrays) -> list[jax.Array]:
        def outputs(*differentiated: jax.Array) -> list[jax.Array]:
            given = list(values)
            for number, value in zip(floating, differentiated):
                given[number] = value
            results = function(*given)
            return [results[number] for number in asked]

        _, pull_back = jax.vjp(outputs, *(values[number] for number in floating))
        return list(pull_back(list(incoming)))

    def never_taken(values: Arrays, _: Arrays) -> list[jax.Array]:
        return [jnp.zeros_like(values[number]) for number in floating]

    return jax.lax.cond(_is_usual(incoming), gradients, never_taken, list(values), list(incoming))


def _is_usual(incoming: Arrays) -> jax.Array:
    """Return True, as a value that depends on all ``incoming`` and that no compiler knows."""
    usual = jnp.asarray(True)
    for gradient in incoming:
        if gradient.size:
            first = jnp.real(gradient).reshape(-1)[0].astype(jnp.float32)
            bits = jax.lax.bitcast_convert_type(first, jnp.uint32)
            usual = usual & (bits != jnp.uint32(_NEVER))
    return usual


def is_differentiable(value: Any) -> bool:
    """Whether ``value`` is of a type that has gradients."""
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
