"""The inspection of functions on the backend that Keras runs on: residuals, programs, replays.

On TensorFlow it is ``engine.inspection``, whose records the other backends return too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..keras_backend import JAX, TENSORFLOW, current_backend

if TYPE_CHECKING or current_backend() == TENSORFLOW:
    from ..engine.inspection import (
        forward_backward,
        print_forward_backward,
        print_saved_residuals,
        replay_count,
        saved_residuals,
    )
else:
    from .printing import print_forward_backward, print_saved_residuals

    if current_backend() == JAX:
        from .jax_inspection import forward_backward, replay_count, saved_residuals
    else:
        from .torch_inspection import forward_backward, replay_count, saved_residuals

__all__ = [
    "forward_backward",
    "print_forward_backward",
    "print_saved_residuals",
    "replay_count",
    "saved_residuals",
]
