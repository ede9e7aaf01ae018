"""Scans over time and hand-written gradients, of the backend that Keras runs on.

``scan`` and ``hand_written_vjp`` are TensorFlow's, and their docstrings are the interface.
Recurrences that are written with these names and ``keras.ops`` run on each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ..keras_backend import JAX, TORCH, current_backend

# Nothing is compiled, so that an array of constants would be made in each step of a loop.
RUNS_EACH_OPERATION = current_backend() == TORCH

# An array of the backend.
Tensor: TypeAlias = Any
Tensors: TypeAlias = tuple[Tensor, ...]
States: TypeAlias = Tensors

if not TYPE_CHECKING and current_backend() == JAX:
    from .inference_mode import inference_alternative, is_inference, replay_alternative
    from .jax_scan import (
        Steps,
        delay_until,
        fused_matmul,
        matmul_over_time,
        matmul_over_time_gradient,
        matrix_gradient,
        previous_states,
        runs_on_cudnn,
        scan,
        scan_in_place,
        sum_over_time,
    )
    from .jax_vjp import call_with_vjp
elif not TYPE_CHECKING and current_backend() == TORCH:
    from .inference_mode import inference_alternative, is_inference, replay_alternative
    from .torch_scan import (
        Steps,
        delay_until,
        fused_matmul,
        matmul_over_time,
        matmul_over_time_gradient,
        matrix_gradient,
        previous_states,
        runs_on_cudnn,
        scan,
        scan_in_place,
        sum_over_time,
    )
    from .torch_vjp import call_with_vjp
else:
    from ..engine.graph import inference_alternative, replay_alternative
    from .hand_written_vjp import call_with_vjp
    from .scan import (
        Steps,
        delay_until,
        fused_matmul,
        is_inference,
        matmul_over_time,
        matmul_over_time_gradient,
        matrix_gradient,
        previous_states,
        runs_on_cudnn,
        scan,
        scan_in_place,
        sum_over_time,
    )


def no_gradient(*_: Tensor) -> Tensors:
    """Stand for the gradient of what ran for inference."""
    raise AssertionError("a recurrence was run for inference, and is differentiated")


__all__ = [
    "RUNS_EACH_OPERATION",
    "States",
    "Steps",
    "Tensor",
    "Tensors",
    "call_with_vjp",
    "delay_until",
    "fused_matmul",
    "inference_alternative",
    "is_inference",
    "matmul_over_time",
    "matmul_over_time_gradient",
    "matrix_gradient",
    "no_gradient",
    "previous_states",
    "replay_alternative",
    "runs_on_cudnn",
    "scan",
    "scan_in_place",
    "sum_over_time",
]
