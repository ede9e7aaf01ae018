"""Calls of a function with a hand-written VJP on JAX, as ``hand_written_vjp`` has them.

JAX keeps what the VJP reads: the VJP is traced right after the function, and what it captures
are the residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from .inference_mode import inference


def call_with_vjp(
    recurrence: Callable[..., Any], *inputs: jax.Array, count: int, name: str
) -> tuple[jax.Array, ...]:
    """Return ``count`` results of ``recurrence(*inputs)`` with its hand-written first derivative.

    Higher derivatives are those of the two programs.
    """
    gradients: list[Any] = []

    def results(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        with inference():
            return tuple(recurrence(*inputs)[0])

    def forward(*inputs: jax.Array) -> tuple[tuple[jax.Array, ...], list[jax.Array]]:
        made, gradient = recurrence(*inputs)
        # The gradients of results have their types.
        traced = jax.make_jaxpr(gradient)(*made)
        gradients[:] = [traced.jaxpr]
        return tuple(made), traced.consts

    def backward(residuals: list[jax.Array], given: Sequence[jax.Array]) -> tuple[Any, ...]:
        found = jaxpr_as_fun(ClosedJaxpr(gradients[0], residuals))(*given)
        # Those behind, such as masks, have no gradient.
        return (*found, *[None] * (len(inputs) - len(found)))

    run = jax.custom_vjp(results)
    run.defvjp(forward, backward)
    with jax.named_scope(name):
        made = run(*inputs)
    assert len(made) == count
    return made
