"""Attention without kept probabilities, of the backend that Keras runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..keras_backend import JAX, TORCH, current_backend

if not TYPE_CHECKING and current_backend() == JAX:
    from .jax_attention import attention, has_flash
elif not TYPE_CHECKING and current_backend() == TORCH:
    from .torch_attention import attention, has_flash
else:
    from .fused_attention import attention, has_flash

__all__ = ["attention", "has_flash"]
