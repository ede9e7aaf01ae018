"""The checkpointed function of the backend that Keras runs on, and its marks of values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..keras_backend import TENSORFLOW, current_backend

if TYPE_CHECKING or current_backend() == TENSORFLOW:
    from ..engine import Checkpointed, checkpoint_name
else:
    from .stateless_functions import Checkpointed, checkpoint_name

__all__ = ["Checkpointed", "checkpoint_name"]
