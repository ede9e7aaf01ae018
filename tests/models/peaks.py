"""Peak memory of whole networks, plain and with a checkpoint every root of n layers: compiled, and
predicted from residuals.

Run as a program, because XLA reads its options once per process: ``python3 -m tests.models.peaks
mlp resnet transformer`` prints a JSON object per network; with ``--predict ours`` or ``plain`` as
first arguments the rows of that model alone are counted, which takes a fifth of the time less.
"""

from __future__ import annotations

import json
import sys
import warnings

import keras
import numpy as np
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from keras_recompute.liveness import profile
from tests.oracle import gradient_step, mean_square

layers = keras.layers


def mlp():
    """32 layers; the activations of one are 128 KiB, its weights 1 KiB."""
    inputs = x = keras.Input((16,), batch_size=2048)
    for _ in range(32):
        x = layers.Dense(16, activation="tanh")(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def residual_blocks(x, count):
    """Normalisation and activation before each of two convolutions, the way around them free."""
    for _ in range(count):
        y = x
        for _ in range(2):
            y = layers.Conv2D(x.shape[-1], 3, padding="same")(
                layers.ReLU()(layers.BatchNormalization()(y))
            )
        x = layers.Add()([x, y])
    return x


def resnet():
    """12 residual blocks of two convolutions; an activation is 128 KiB."""
    inputs = keras.Input((16, 16, 3), batch_size=16)
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = residual_blocks(x, 12)
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))


def transformer():
    """12 blocks of attention and two dense layers; the states between them are 32 KiB."""
    inputs = x = keras.Input((32, 16), batch_size=16)
    for _ in range(12):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(y, y)])
        y = layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(16)(y)])
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))


def compiled(model):
    """Return the compiled program of all gradients of the mean square of the outputs."""
    step = gradient_step(model, loss=mean_square)
    return profile(step, tf.TensorSpec(model.inputs[0].shape), input_feed=["x"])


def kept(function, *arguments) -> int:
    """Return the bytes that ``function`` keeps beside its arguments and variables, row by row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecomputeWarning)
        rows = kr.saved_residuals(function, *arguments)
    return sum(row.bytes for row in rows if row.kind in ("operation", "name"))


def predicted(model) -> int:
    """Return the bytes at the peak: at the end of the forward pass, or when one of the sections has
    been replayed.

    Then the states up to the section are there, the gradient of its result, as large as the result,
    and its residuals.
    """
    first = np.zeros(model.inputs[0].shape, np.float32)
    peaks = [kept(lambda x: tf.reduce_mean(model(x, training=True) ** 2), first)]
    if isinstance(model, kr.Model):
        tensors = {
            id(t): t for op in model.operations for node in op._inbound_nodes for t in node.outputs
        }
        states = 0
        for section in model.plan.steps:
            if not section.recomputed:
                continue

            def run(*arguments, section=section):
                values = dict(zip(section.inputs, arguments))
                for call in section.calls:
                    call.run(values)
                return [values[key] for key in section.outputs]

            states += sum(4 * int(np.prod(tensors[key].shape)) for key in section.outputs)
            peaks.append(
                states
                + kept(run, *(np.zeros(tensors[key].shape, np.float32) for key in section.inputs))
            )
    return max(peaks)


def figures(build, predict=("plain", "ours")) -> dict[str, float]:
    """Return the peaks of the plain model and of that with checkpoints, and for those in
    ``predict`` what the rows say.
    """
    plain = build()
    count = sum(not isinstance(layer, layers.InputLayer) for layer in plain.layers)
    ours = kr.checkpointed(plain, every=round(count**0.5))
    found = {"layers": count, "sections": len(ours.plan.steps)}
    for name, model in (("plain", plain), ("ours", ours)):
        program = compiled(model)
        found[f"{name}_temporary"] = program.allocated_temporary_bytes
        found[f"{name}_live_peak"] = program.not_always_live_peak_bytes
        if name in predict:
            found[f"{name}_predicted"] = predicted(model)
    return found


if __name__ == "__main__":
    names, arguments = sys.argv[1:], {}
    if names[:1] == ["--predict"]:
        arguments, names = {"predict": names[1:2]}, names[2:]
    for name in names:
        print(json.dumps({"network": name, **figures(globals()[name], **arguments)}))
