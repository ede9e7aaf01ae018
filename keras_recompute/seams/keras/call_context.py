"""Keras's call context, by which an outer call passes arguments to the layers inside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import AutocastScope
from keras.src.layers.layer import CallContext

_CONTEXT = "current_call_ctx"


def current_training() -> Any:
    """Return the ``training`` argument of the enclosing call; None outside of one."""
    return getattr(global_state.get_global_attribute(_CONTEXT), "training", None)


@contextlib.contextmanager
def pass_training(training: Any, layer: Any, *, is_replay: bool = False) -> Iterator[None]:
    """Give layers called inside the ``training`` of an enclosing call.

    Calling ``layer`` does this itself; its method ``call`` alone does not. As a call does, it makes
    the layers inside forget the losses that they have added, unless it ``is_replay``.
    """
    context = global_state.get_global_attribute(_CONTEXT)
    if training is None or (context is not None and current_training() is training):
        yield
        return
    is_new = context is None
    if is_new:
        context = CallContext(entry_layer=layer)
        global_state.set_global_attribute(_CONTEXT, context)
        if not is_replay:
            layer._clear_losses()
    before = getattr(context, "training", None)
    context.training = training
    try:
        yield
    finally:
        context.training = before
        if is_new:
            global_state.set_global_attribute(_CONTEXT, None)


def entry_layer() -> Any:
    """Return the layer of the outermost enclosing call; None outside of one."""
    return getattr(global_state.get_global_attribute(_CONTEXT), "entry_layer", None)


def autocast_dtype() -> Any:
    """Return the type that the enclosing call casts variables to; None if it does not."""
    return getattr(global_state.get_global_attribute("autocast_scope"), "dtype", None)


def autocast_to(dtype: Any) -> Any:
    """Return a context in which variables are cast to ``dtype``; None casts nothing."""
    return AutocastScope(dtype)


def stateless_scope() -> Any:
    """Return the enclosing ``keras.StatelessScope``; None outside of one."""
    return get_stateless_scope()


def stateless_values() -> Any:
    """Return the values of variables in the enclosing ``keras.StatelessScope``."""
    scope = get_stateless_scope()
    return {} if scope is None else scope.state_mapping


def is_symbolic() -> bool:
    """Whether Keras runs a layer only to infer shapes or to build its weights."""
    return bool(in_symbolic_scope())
