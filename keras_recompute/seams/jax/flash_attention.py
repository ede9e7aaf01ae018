"""What JAX asks of a GPU before it takes cuDNN's flash attention."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from jax._src.cudnn import fused_attention_stablehlo as cudnn

# Ampere's. Keras falls back to attention with whole probabilities below it.
_LEAST_CAPABILITY = "8.0"
_VERSION = 90800  # of cuDNN, as described devices have it


def has_flash_attention() -> bool:
    """Whether the GPU that is traced for has cuDNN's flash attention."""
    try:
        cudnn.check_cudnn_version()
    except RuntimeError:
        return False
    return cudnn.check_compute_capability(_LEAST_CAPABILITY)


@contextmanager
def described_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Have JAX find a GPU of this compute capability inside the context, in place of its own."""
    before = cudnn.check_compute_capability, cudnn.check_cudnn_version

    def is_at_least(least: str) -> bool:
        return capability >= tuple(map(int, least.split(".")))

    cudnn.check_compute_capability, cudnn.check_cudnn_version = is_at_least, lambda: _VERSION
    try:
        yield
    finally:
        cudnn.check_compute_capability, cudnn.check_cudnn_version = before


@contextmanager
def checked_for_gradients() -> Iterator[None]:
    """Inside the context, refuse a call of cuDNN's attention if it has no gradient.

    cuDNN's attention has none for some odd lengths, and JAX refuses it when it differentiates. In
    plain Keras that is during the call: Keras notices, and calls XLA's attention instead. Under
    ``jax.checkpoint`` it would be after the call.
    """
    check = cudnn.check_is_flash_attention
    parameters = inspect.signature(check)

    @wraps(check)  # Keras reads the signature
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs)
        given.arguments["is_training"] = True
        return check(*given.args, **given.kwargs)

    cudnn.check_is_flash_attention = checked
    try:
        yield
    finally:
        cudnn.check_is_flash_attention = check
