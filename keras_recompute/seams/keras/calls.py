"""The context that Keras passes from an outer call to the layers inside."""

from __future__ import annotations

from typing import Any

from keras.src.backend.common import global_state
from keras.src.backend.common.symbolic_scope import in_symbolic_scope


def training_around() -> Any:
    """Return the ``training`` that the call around passes on; None outside of one."""
    return getattr(global_state.get_global_attribute("current_call_ctx"), "training", None)


def autocast_around() -> Any:
    """Return the type that variables are cast to by the call around; None where they are not."""
    return getattr(global_state.get_global_attribute("autocast_scope"), "dtype", None)


def is_symbolic() -> bool:
    """Whether Keras runs a layer to learn the shapes of its results, or to have it make its weights."""
    return bool(in_symbolic_scope())
