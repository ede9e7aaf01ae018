"""The printing of residuals and programs on JAX and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..keras_backend import JAX, current_backend

if current_backend() == JAX:
    from .jax_inspection import forward_backward, saved_residuals
else:
    from .torch_inspection import forward_backward, saved_residuals


def print_saved_residuals(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print a line for each row of ``saved_residuals``, with its arguments and exceptions."""
    for row in saved_residuals(fn, *args, **kwargs):
        print(row)


def print_forward_backward(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print the programs of ``forward_backward`` side by side, with what is replayed in colour."""
    forward_backward(fn, *args, **kwargs).print()
