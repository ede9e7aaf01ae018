"""Tapes, forward-mode accumulators, and the registry of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import forwardprop_util, record
from tensorflow.python.framework import ops

from .operations import GRADIENT


def stop_recording() -> Any:
    """Return a context in which no tape of the thread records operations."""
    return record.stop_recording()


def record_operation(
    name: str, outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], gradient: Callable[..., Any]
) -> None:
    """Let all tapes of the thread differentiate ``outputs`` by ``inputs`` with ``gradient``."""
    record.record_operation(name, outputs, inputs, gradient)


def is_recorded(tensor: tf.Tensor) -> bool:
    """Whether a tape of the thread would differentiate by ``tensor``."""
    return bool(record.should_record_backprop([tensor]))


def may_record() -> bool:
    """Whether the thread has a tape, or a ``tf.autodiff.ForwardAccumulator``, that is not stopped."""
    return bool(record.could_possibly_record())


def has_tangents(tensors: Sequence[tf.Tensor]) -> bool:
    """Whether a ``tf.autodiff.ForwardAccumulator`` watches one of ``tensors``."""
    return bool(forwardprop_util.pack_tangents(list(tensors)).tangents)


def gradient_is_registered(name: str) -> bool:
    """Whether a gradient is registered for operations of the type ``name``, or under this name."""
    try:
        ops.gradient_registry.lookup(name)
    except LookupError:
        return False
    return True


def has_gradient(operation: tf.Operation) -> bool:
    """Whether TensorFlow finds a gradient for ``operation``; one that calls functions has none registered."""
    try:
        ops.get_gradient_function(operation)
    except LookupError:
        return False
    return True


def registered_gradient(name: str) -> Callable[..., Any]:
    """Return the gradient that is registered for operations of the type ``name``. Raises LookupError if there is none."""
    return ops.gradient_registry.lookup(name)


def set_gradient(operation: tf.Operation, name: str | None) -> None:
    """Let ``operation`` have the gradient that is registered under ``name``; with None that of its type again."""
    if name is None:
        operation._clear_attr(GRADIENT)
    else:
        operation._set_attr(GRADIENT, tf.compat.v1.AttrValue(s=name.encode()))


def unregister_gradient(name: str) -> None:
    """Take the gradient ``name`` out of the registry, if it is there."""
    ops.gradient_registry._registry.pop(name, None)
