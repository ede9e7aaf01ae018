"""The scopes of the backend that Keras runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..keras_backend import TORCH, current_backend

if not TYPE_CHECKING and current_backend() == TORCH:
    from ..keras_backend.torch_scopes import keep_scope, recompute_scope
else:
    from ..engine import keep_scope, recompute_scope

__all__ = ["keep_scope", "recompute_scope"]
