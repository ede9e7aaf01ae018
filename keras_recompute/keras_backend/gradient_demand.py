"""Whether the gradient of a call may be asked for, and whether one passes through the call.

Recomputation belongs where it may, whatever ``training`` is: a fine-tuned network runs with
``training=False``, and trainers of two networks pass no ``training`` at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import keras

from ..seams.keras.call_context import autocast_to, current_training, is_symbolic
from ..seams.keras.call_stack import enclosing_step, is_being_exported
from ..user_code import KNOWN_PACKAGES
from . import JAX, TENSORFLOW, current_backend


def gradient_may_be_asked() -> bool:
    """Return whether what is called here may be differentiated.

    Called eagerly on TensorFlow, only a tape that records now can. What is traced into a function,
    on TensorFlow or JAX, may be differentiated as a whole later. So there the answer is yes, except
    for what is known to be inference: ``evaluate``, ``predict``, shapes that Keras asks for, and
    functions that are written to files, unless they train.
    """
    if is_symbolic():
        return False
    is_inference = enclosing_step() in ("test_step", "predict_step")
    if current_backend() != TENSORFLOW:
        return not is_inference
    import tensorflow as tf

    from ..seams.tensorflow.gradients import may_record

    if may_record():
        return True
    if tf.executing_eagerly() or is_inference:
        return False
    return current_training() is True or not is_being_exported()


def gradient_may_pass(nest: Any, layers: Collection[keras.Operation]) -> bool:
    """Return whether a gradient may be taken of a tensor in ``nest``, or of what ``layers`` read.

    The answer is no only while a gradient is taken of other values: for layers in front of the
    first weight that trains, as an example. ``layers`` needs nested layers too where one may be of
    the user's own class.
    """
    if not all(map(reads_known_variables, layers)):
        return True
    tensors = filter(keras.ops.is_tensor, keras.tree.flatten(nest))
    variables = (variable for layer in layers for variable in getattr(layer, "variables", ()))
    if current_backend() == TENSORFLOW:
        import tensorflow as tf

        from ..seams.tensorflow.gradients import is_recorded, is_taped_here

        # A tape records what is made of a trainable variable once it is read.
        if not is_taped_here() or any(variable.trainable for variable in variables):
            return True
        return any(map(is_recorded, tf.nest.flatten([*tensors], expand_composites=True)))
    with autocast_to(None):
        given = itertools.chain(tensors, (variable.value for variable in variables))
        if current_backend() == JAX:
            from ..seams.jax.tracing import is_differentiated, takes_gradient

            return not takes_gradient() or any(map(is_differentiated, given))
        import torch

        return torch.is_grad_enabled() and any(value.requires_grad for value in given)


def reads_known_variables(operation: keras.Operation) -> bool:
    """Whether Keras knows the variables that ``operation`` reads.

    A layer of the user's own without any may read those of a module, or a parameter of PyTorch's.
    """
    package = type(operation).__module__.split(".")[0]
    return package in KNOWN_PACKAGES or bool(getattr(operation, "variables", ()))
