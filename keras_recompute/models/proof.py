"""The peak of a training step of a model, read from the program that XLA compiles for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..errors import DoesNotFitError, RecomputeWarning
from ..liveness import Program, compile_program
from ..sizes import format_bytes


def compiled_peak_bytes(model: keras.Model, specs: Sequence[tf.TensorSpec], *, optimizer_bytes: int = 0) -> int:
    """Return the peak of ``compiled_pass`` (weights, gradients, activations, not the inputs) and ``optimizer_bytes``."""
    return compiled_pass(model, specs).peak_bytes + optimizer_bytes


def needed_bytes_on(device: str, model: keras.Model, specs: Sequence[tf.TensorSpec], *, optimizer_bytes: int = 0) -> int:
    """Return all that ``compiled_pass`` needs on ``device``, its data included, and ``optimizer_bytes``."""
    try:
        needed = compiled_pass(model, specs, device=device).needed_bytes
    except DoesNotFitError as error:
        needed = error.needed_bytes
    return int(needed or 0) + optimizer_bytes


def compiled_pass(model: keras.Model, specs: Sequence[tf.TensorSpec], *, device: str | None = None) -> Program:
    """Compile one forward and backward pass of ``model`` on inputs like ``specs``, flat, and return its record."""
    compiled = tf.function(training_pass(model), jit_compile=True, autograph=False)
    return compile_program(compiled, *specs, input_feed=range(len(specs)), layers_of=model, device=device).program()


def training_pass(model: keras.Model) -> Callable[..., Any]:
    """Return the function of flat inputs that returns a loss of ``model`` and its gradients of all weights.

    The loss is half the sum of squares of all outputs and what layers add, whatever the model is compiled with: its gradients
    are as large as the outputs.
    """
    variables = [v.value for v in model.trainable_variables]

    def run(*inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            results = model(keras.tree.pack_sequence_as(model.input, inputs), training=True)
            outputs = [tf.cast(y, tf.float32) for y in keras.tree.flatten(results) if y.dtype.is_floating]
            loss = tf.add_n([*(tf.nn.l2_loss(y) for y in outputs), *(tf.cast(e, tf.float32) for e in model.losses)])
        return loss, tape.gradient(loss, variables)

    return run


def warn_unless_less(checkpointed: keras.Model, plain: keras.Model, specs: Sequence[tf.TensorSpec]) -> None:
    """Compile both models on inputs like ``specs``, and warn where the one with checkpoints takes no less memory."""
    needed, plain_needed = compiled_peak_bytes(checkpointed, specs), compiled_peak_bytes(plain, specs)
    if needed >= plain_needed:
        shapes = ", ".join(f"{spec.dtype.name}{spec.shape}" for spec in specs)
        warnings.warn(
            f"a compiled training step of {plain.name!r} takes {format_bytes(needed)} with these checkpoints and "
            f"{format_bytes(plain_needed)} without, on {shapes}: what is replayed is no more than what weights and a single "
            f"layer need. Take larger batches, place checkpoints by keras_recompute.plan, or train the plain model.",
            RecomputeWarning,
            stacklevel=3,
        )
