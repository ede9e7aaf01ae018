"""Recomputation of pure functions on PyTorch, by ``torch.utils.checkpoint``.

It runs a function again when the backward pass first asks for a value that the function saved.
Source: PyTorch's documentation of ``torch.utils.checkpoint``, its variant without reentrance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Function = Callable[..., list[torch.Tensor]]


def named_scope(_: str) -> contextlib.AbstractContextManager[None]:
    """Return a context that does nothing: operations of PyTorch have no names of scopes."""
    return contextlib.nullcontext()


def may_be_differentiated(values: Sequence[Any]) -> bool:
    """Whether what follows from ``values`` may be: gradients are recorded, and one has them."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def snapshot(value: torch.Tensor) -> torch.Tensor:
    """Return ``value`` as it is now: Keras's variables are assigned in place."""
    return value.detach().clone()


def recomputed(function: Function, *, name: str) -> Function:  # noqa: ARG001  # as on JAX
    """Return ``function`` of tensors, whose intermediate values are made again for its gradient.

    ``function`` takes and returns a flat list of tensors. PyTorch's own random numbers are those of
    the forward pass.
    """

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return list(checkpoint(function, *tensors, use_reentrant=False))

    return run
