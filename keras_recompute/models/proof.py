"""What a training step of a model needs, read from the program that XLA compiles for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ..liveness import Program, profile


def compiled_peak_bytes(model: keras.Model, specs: Sequence[tf.TensorSpec], *, optimizer_bytes: int = 0) -> int:
    """Return the peak of ``compiled_pass`` (weights, gradients, activations, not the inputs) and ``optimizer_bytes``."""
    return compiled_pass(model, specs).peak_bytes + optimizer_bytes


def compiled_pass(model: keras.Model, specs: Sequence[tf.TensorSpec]) -> Program:
    """Compile one forward and backward pass of ``model`` on inputs like ``specs``, flat, and return its record.

    The loss is half the sum of squares of all outputs and what layers add, whatever the model is compiled with: its gradients
    are as large as the outputs.
    """
    variables = [v.value for v in model.trainable_variables]

    def training_pass(*inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            results = model(keras.tree.pack_sequence_as(model._inputs_struct, inputs), training=True)
            outputs = [tf.cast(y, tf.float32) for y in keras.tree.flatten(results) if y.dtype.is_floating]
            loss = tf.add_n([*(tf.nn.l2_loss(y) for y in outputs), *(tf.cast(e, tf.float32) for e in model.losses)])
        return loss, tape.gradient(loss, variables)

    compiled = tf.function(training_pass, jit_compile=True, autograph=False)
    return profile(compiled, *specs, input_feed=range(len(specs)), layers_of=model)
