"""Policies and marks of values on PyTorch: this package's, as those of selective checkpointing.

PyTorch replays a function whole, but for the operations whose results were saved. So a marked value
is saved where it is marked, by an operation that returns it as it is, and what it follows from is
computed again only where other values need it.

Source: ``torch.utils.checkpoint.create_selective_checkpoint_contexts``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ..engine import policies
from ..errors import UnsupportedError
from ..keras_backend.policy_checks import require_parameters
from ..keras_backend.torch_remat import marks
from ..keras_backend.torch_scopes import scope_kind, scope_policy

_OPS = torch.ops.aten
# It returns what it is given, and is no operation of Keras's layers.
_MARK = _OPS.alias.default
_MATMULS = frozenset((_OPS.mm.default, _OPS.addmm.default))
_BATCHED = frozenset((_OPS.bmm.default, _OPS.baddbmm.default))
# The name that the operation under construction marks its result with.
_name: ContextVar[str | None] = ContextVar("name", default=None)


def mark(value: torch.Tensor, name: str) -> torch.Tensor:
    """Return ``value``, marked with ``name``."""
    found = marks.get()
    if found is not None:
        found.add(name)
    token = _name.set(name)
    try:
        return _MARK(value)
    finally:
        _name.reset(token)


def name_of_mark(operation: Any) -> str | None:
    """Return the name that ``operation``, which runs now, marks its result with."""
    return _name.get() if operation is _MARK else None


def backend_policy(policy: Any) -> Callable[[], Any] | None:
    """Return ``policy`` as contexts of ``torch.utils.checkpoint``; None saves nothing.

    A callable of the user's own is one of PyTorch's: of a context, an operation and its arguments.

    Raises:
        InvalidArgumentError: A policy of the user's own does not take what PyTorch gives it.
        UnsupportedError: The policy offloads.
    """
    if isinstance(policy, (policies.SaveNothing, policies.SaveReplaySources)):
        return None
    decide = functools.partial(_decide_by_scopes, _of_operations(policy))
    return functools.partial(create_selective_checkpoint_contexts, decide)


def _decide_by_scopes(policy: Callable[..., Any], *operation: Any, **arguments: Any) -> Any:
    if scope_kind() is not None:
        return scope_policy()
    return policy(*operation, **arguments)


def _of_operations(policy: Any) -> Callable[..., Any]:
    if isinstance(policy, policies.Either):
        return functools.partial(_any_of, tuple(map(_of_operations, policy.policies)))
    if not isinstance(policy, _OURS):
        require_parameters(
            policy,
            "PyTorch calls a policy with a context, an operation and its arguments: "
            "def policy(context, operation, *values, **options)",
            "context",
            "operation",
            "value",
        )
        return policy
    if isinstance(policy, policies.SaveNames) and policy.offloaded:
        raise UnsupportedError(
            f"{policy!r} offloads, which is not available on Keras's PyTorch backend. Save these "
            "names, or put torch.autograd.graph.save_on_cpu() around the function"
        )
    return functools.partial(_decide, policy)


def _decide(policy: Any, _: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    return _SAVED if _saves(policy, operation) else CheckpointPolicy.PREFER_RECOMPUTE


def _saves(policy: Any, operation: Any) -> bool:
    if isinstance(policy, policies.SaveMatmuls):
        return operation in _MATMULS or (policy.batch_dims and operation in _BATCHED)
    name = name_of_mark(operation)
    if isinstance(policy, policies.SaveNames):
        return name in policy.names
    if isinstance(policy, policies.SaveAllButNames):
        return name is not None and name not in policy.names
    return isinstance(policy, policies.SaveEverything)


def _any_of(parts: tuple[Any, ...], *operation: Any, **arguments: Any) -> CheckpointPolicy:
    for part in parts:
        answer = part(*operation, **arguments)
        if answer is True or answer in (_SAVED, CheckpointPolicy.PREFER_SAVE):
            return _SAVED
    return CheckpointPolicy.PREFER_RECOMPUTE


_SAVED = CheckpointPolicy.MUST_SAVE
_OURS = (
    policies.SaveNothing,
    policies.SaveEverything,
    policies.SaveReplaySources,
    policies.SaveMatmuls,
    policies.SaveNames,
    policies.SaveAllButNames,
)
