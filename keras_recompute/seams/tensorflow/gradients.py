"""Gradient tapes, forward-mode accumulators, and the registry of gradient functions."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import forwardprop_util, record
from tensorflow.python.framework import ops

from .operations import GRADIENT


def stop_recording() -> Any:
    """Return a context in which this thread's tapes record nothing."""
    return record.stop_recording()


def record_operation(
    name: str,
    outputs: Sequence[tf.Tensor],
    inputs: Sequence[tf.Tensor],
    gradient: Callable[..., Any],
) -> None:
    """Record ``gradient`` on this thread's tapes as the derivative of ``outputs`` by ``inputs``."""
    record.record_operation(name, outputs, inputs, gradient)


def is_recorded(tensor: tf.Tensor) -> bool:
    """Whether a tape of this thread would differentiate with respect to ``tensor``."""
    return bool(record.should_record_backprop([tensor]))


def may_record() -> bool:
    """Whether the thread has an active tape or ``tf.autodiff.ForwardAccumulator``."""
    return bool(record.could_possibly_record())


def is_taped_here() -> bool:
    """Whether a tape records that was opened in the function that is traced now, if one is.

    What a function is given is not recorded by a tape around it, which may differentiate by it all
    the same. A tape is found in the local variables of the function that opened it.
    """
    if tf.executing_eagerly() or not may_record():
        return may_record()
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code, found = frame.f_code, frame.f_locals
        if code.co_name == "func_graph_from_py_func":
            return False
        for name in (*code.co_varnames, *code.co_cellvars):
            if isinstance(found.get(name), tf.GradientTape):
                return True
    return False


def has_tangents(tensors: Sequence[tf.Tensor]) -> bool:
    """Whether a ``tf.autodiff.ForwardAccumulator`` watches one of ``tensors``."""
    return bool(forwardprop_util.pack_tangents(list(tensors)).tangents)


def gradient_is_registered(name: str) -> bool:
    """Whether a gradient is registered under ``name``, an operation type or another name."""
    try:
        ops.gradient_registry.lookup(name)
    except LookupError:
        return False
    return True


def has_gradient(operation: tf.Operation) -> bool:
    """Whether TensorFlow finds a gradient for ``operation``."""
    try:
        # Not a look-up by type: an operation that calls functions has no registered gradient.
        ops.get_gradient_function(operation)
    except LookupError:
        return False
    return True


def registered_gradient(name: str) -> Callable[..., Any]:
    """Return the gradient function of the operation type ``name``, or raise LookupError."""
    return ops.gradient_registry.lookup(name)


def library_gradient(name: str) -> tuple[str, list[Any]] | None:
    """Return the function that is the custom gradient ``name``, and the values that it closes over.

    TensorFlow registers custom gradients under a new name for each call. None where it is no
    function of TensorFlow's own, or reads variables.
    """
    try:
        wrapped = _captured(ops.gradient_registry.lookup(name)).get("tape_grad_fn")
    except LookupError:
        return None
    captured = _captured(wrapped)
    function: Any = captured.get("grad_fn")
    is_own = getattr(function, "__module__", "").startswith("tensorflow.python.")
    if not is_own or captured.get("variables") != []:
        return None
    return f"{function.__module__}.{function.__qualname__}", [*_captured(function).values()]


def _captured(function: Any) -> dict[str, Any]:
    """Return what a Python function closes over, by name; nothing for other callables."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    found = {}
    for name, cell in zip(code.co_freevars if code else (), cells or ()):
        with contextlib.suppress(ValueError):  # not set yet
            found[name] = cell.cell_contents
    return found


def set_gradient(operation: tf.Operation, name: str | None) -> None:
    """Set the gradient of ``operation`` to the one registered as ``name``; None resets it."""
    if name is None:
        operation._clear_attr(GRADIENT)
    else:
        operation._set_attr(GRADIENT, tf.compat.v1.AttrValue(s=name.encode()))


@contextlib.contextmanager
def stop_gradients_to(numbers: Mapping[tf.Operation, Sequence[int]]) -> Iterator[None]:
    """Return a context in which gradient functions compute no gradient of some inputs.

    ``numbers`` has the numbers of these inputs for each operation. A tape finds such inputs and
    hands their numbers to gradient functions; ``tf.gradients`` does not.
    """
    for operation, of_inputs in numbers.items():
        operation.skip_input_indices = tuple(of_inputs)
    try:
        yield
    finally:
        for operation in numbers:
            del operation.skip_input_indices


def unregister_gradient(name: str) -> None:
    """Remove the gradient ``name`` from the registry, if it is there."""
    ops.gradient_registry._registry.pop(name, None)
