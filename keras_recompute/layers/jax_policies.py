"""Policies and marks of values on JAX: this package's, as JAX's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from ..engine import policies
from ..keras_backend.policy_checks import require_parameters

_OF_JAX = jax.checkpoint_policies
_FROM, _TO = "device", "pinned_host"


def mark(value: jax.Array, name: str) -> Any:
    """Return ``value``, marked with ``name``."""
    return checkpoint_name(value, name)


def backend_policy(policy: Any) -> Callable[..., Any] | None:
    """Return ``policy`` as JAX has it; None saves nothing. One of JAX's own is returned as it is.

    Nothing marks the source of a cheaper replay here, so ``save_replay_sources`` saves nothing.

    Raises:
        InvalidArgumentError: A policy of the user's own does not take what JAX gives it.
    """
    if isinstance(policy, (policies.SaveNothing, policies.SaveReplaySources)):
        return None
    if isinstance(policy, policies.SaveEverything):
        return _OF_JAX.everything_saveable
    if isinstance(policy, policies.SaveMatmuls):
        with_batches, without = _OF_JAX.dots_saveable, _OF_JAX.dots_with_no_batch_dims_saveable
        return with_batches if policy.batch_dims else without
    if isinstance(policy, policies.SaveAllButNames):
        return _OF_JAX.save_any_names_but_these(*policy.names)
    if isinstance(policy, policies.SaveNames):
        if not policy.offloaded:
            return _OF_JAX.save_only_these_names(*policy.names)
        return _OF_JAX.save_and_offload_only_these_names(
            names_which_can_be_saved=list(policy.names),
            names_which_can_be_offloaded=list(policy.offloaded),
            offload_src=_FROM,
            offload_dst=_TO,
        )
    if isinstance(policy, policies.Either):
        return functools.partial(_any_of, tuple(map(backend_policy, policy.policies)))
    require_parameters(
        policy,
        "JAX calls a policy with an operation, its arguments and its parameters: "
        "def policy(primitive, *values, **parameters)",
        "primitive",
        "value",
        parameter="",
    )
    return policy


def _any_of(parts: tuple[Any, ...], *value: Any, **parameters: Any) -> Any:
    """Return whether one of the policies saves a value, or else offloads it."""
    answers = [part(*value, **parameters) for part in parts if part is not None]
    if any(answer is True for answer in answers):
        return True
    others = [answer for answer in answers if answer is not False]
    return others[0] if others else False
