"""What JAX asks of a GPU before it takes cuDNN's flash attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
