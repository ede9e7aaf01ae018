"""Order of computation: what waits for values that it does not read.

XLA for GPUs keeps optimization barriers until it has scheduled. XLA for CPUs drops them before.
There a predicate that follows from the awaited values decides what is computed. It is always true,
and no compiler can know that: the first element of each value is not one chosen NaN, which no
arithmetic makes.

Source: the predicate is that of ``engine.passes.fence``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from ..backends import CPU, TPU, described_backend

# A quiet NaN whose payload no floating-point unit generates.
NEVER = 0x7FD5_AA5A

Arrays = Sequence[jax.Array]


def drops_barriers() -> bool:
    """Whether the compiler drops barriers before it schedules: on a CPU."""
    return current_backend() == CPU


def current_backend() -> str:
    """Return the kind of device that the step under construction is for."""
    return described_backend() or jax.default_backend()


def read_after(value: Any, ends: Sequence[Any]) -> Any:
    """Return ``value``, which a CPU or a GPU reads when those of ``ends`` are there.

    All are arrays, dense or sparse. Else XLA begins all sections with what does not depend on the
    section before, such as the products of all timesteps with the kernel of a recurrent layer, and
    holds that for all of them.
    """
    ends = list(filter(is_differentiable, jax.tree.leaves(ends)))
    if not ends or current_backend() == TPU:
        return value
    # A sparse array is a pytree of dense ones.
    return jax.tree.map(lambda array: _array_read_after(array, ends), value)


def _array_read_after(value: jax.Array, ends: Arrays) -> jax.Array:
    if drops_barriers():
        return jnp.where(is_usual(ends), value, jnp.zeros_like(value))
    return _behind_barrier(value, ends)


@jax.custom_jvp  # whose gradient has no barrier, which would hold zeros for ``ends``
def _behind_barrier(value: jax.Array, ends: Arrays) -> jax.Array:
    return jax.lax.optimization_barrier((value, *ends))[0]


@_behind_barrier.defjvp
def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return _behind_barrier(*primals), tangents[0]


def is_usual(values: Arrays) -> jax.Array:
    """Return True, as a value that depends on all ``values`` and that no compiler knows."""
    # It has no gradient. Without this the rule below would be differentiated.
    return _is_usual_of_all(list(map(jax.lax.stop_gradient, values)))


@custom_vmap
def _is_usual_of_all(values: Arrays) -> jax.Array:
    usual = jnp.asarray(True)
    for value in values:
        if value.size:
            bits = jax.lax.bitcast_convert_type(_one_of(jnp.real(value)), jnp.uint32)
            usual = usual & (bits != jnp.uint32(NEVER))
    return usual


@_is_usual_of_all.def_vmap
def _(_: int, __: Any, values: Arrays) -> tuple[jax.Array, bool]:
    # One predicate for all elements: a branch on several would run both of its sides.
    return _is_usual_of_all(values), False


def _one_of(value: jax.Array) -> jax.Array:
    """Return a number that depends on ``value``, and is no NaN that it does not have."""
    # Where types say how arrays are sharded, JAX takes no single element of a sharded array.
    is_sharded = any(axis is not None for axis in jax.typeof(value).sharding.spec)
    number = jnp.max(value) if is_sharded else value.reshape(-1)[0]
    return number.astype(jnp.float32)


def is_differentiable(value: Any) -> bool:
    """Whether ``value`` is of a type that has gradients."""
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
