"""The order of weight updates in a training step, of the backend that Keras runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..keras_backend import TORCH, current_backend

if not TYPE_CHECKING and current_backend() == TORCH:
    from ..keras_backend.torch_updates import updates_in_backward
else:
    from ..engine import updates_in_backward

__all__ = ["updates_in_backward"]
