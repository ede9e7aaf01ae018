"""Pipelined models through Graphcore's names, and the oracle: a training loop by hand."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

LENGTH, FEATURES, UNITS, BATCH = 12, 3, 4, 2


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def configure(*, recompute: bool = True) -> None:
    from tensorflow.python import ipu

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.allow_recompute = recompute
    config.configure_ipu_system()


def recurrent(inputs: keras.KerasTensor, checkpoints: int, units: int = UNITS) -> keras.KerasTensor:
    """Return the outputs of a recurrent layer that is cut by checkpoints."""
    import ipu_tensorflow_addons.keras.layers as ipu_layers

    from keras_recompute.layers.time_slice import TimeSlice

    layer = ipu_layers.PopnnLSTM(units, return_sequences=True, return_state=True)
    steps, state, outputs = inputs.shape[1] // (checkpoints + 1), None, []
    for n in range(checkpoints + 1):
        output, *state = layer(TimeSlice(n * steps, (n + 1) * steps)(inputs), initial_state=state)
        outputs.append(output)
        if n < checkpoints:
            state = ipu_layers.RecomputationCheckpoint()(state)
    return keras.layers.Concatenate(axis=1)(outputs) if checkpoints else outputs[0]


def layers_of(
    stages: int, checkpoints: int | None, length: int, batch: int
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Return input and output of a network in ``stages`` stages.

    The first stage is recurrent and divided by checkpoints. With ``checkpoints`` None it is a dense
    layer, which compiles sooner.
    """
    import ipu_tensorflow_addons.keras.layers as ipu_layers

    in_stage = tf.keras.ipu.PipelineStage
    inputs = keras.Input((length, FEATURES), batch_size=batch)
    with in_stage(0):
        is_dense = checkpoints is None
        x = (
            keras.layers.Dense(UNITS, activation="tanh")(inputs)
            if is_dense
            else recurrent(inputs, checkpoints)
        )
    for stage in range(1, stages - 1):
        with in_stage(stage):
            x = keras.layers.Dense(UNITS, activation="tanh")(x)
            x = ipu_layers.RecomputationCheckpoint()(x)
            x = keras.layers.LayerNormalization()(x)
    with in_stage(stages - 1):
        x = keras.layers.Dense(2)(x)
    return inputs, x


def pipelined(
    stages: int = 2,
    checkpoints: int | None = None,
    *,
    recompute: bool = True,
    steps: int = 2,
    accumulation: int = 2,
    optimizer: Any = None,
    length: int = LENGTH,
    batch: int = BATCH,
    **options: Any,
) -> Any:
    """Return a compiled pipelined model. ``steps`` is steps_per_execution."""
    from tensorflow.python import ipu

    configure(recompute=recompute)
    with ipu.ipu_strategy.IPUStrategy().scope():
        keras.utils.set_random_seed(1)
        model = keras.Model(*layers_of(stages, checkpoints, length, batch))
        model.compile(optimizer or keras.optimizers.SGD(0.2), "mse", steps_per_execution=steps)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=accumulation,
            device_mapping=[0] * stages,
            pipeline_schedule=ipu.pipelining_ops.PipelineSchedule.Sequential,
            recomputation_mode=ipu.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
            **options,
        )
    return model


def data(microbatches: int) -> tuple[np.ndarray, np.ndarray]:
    return numbers(microbatches * BATCH, LENGTH, FEATURES, seed=2), numbers(
        microbatches * BATCH, LENGTH, 2, seed=3
    )


def train_by_hand(
    model: keras.Model, weights, optimizer, x, y, *, accumulation: int, mean: bool = False
):
    """Train the layers of ``model`` as a plain keras.Model.

    Returns losses and gradient norms per update, and the final weights.
    """
    plain = keras.Model(model.inputs[0], model.outputs[0])
    assert type(plain) is not type(model)
    plain.set_weights(weights)
    variables = plain.trainable_variables
    losses, norms = [], []
    for first in range(0, len(x) // BATCH, accumulation):
        total, update_losses = None, []
        for m in range(first, first + accumulation):
            rows = slice(m * BATCH, (m + 1) * BATCH)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((plain(x[rows], training=True) - y[rows]) ** 2)
            gradients = tape.gradient(loss, [v.value for v in variables])
            total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
            update_losses.append(float(loss))
        if mean:
            total = [g / accumulation for g in total]
        optimizer.apply(total, variables)
        losses.append(np.mean(update_losses))
        norms.append(float(tf.linalg.global_norm(total)))
    return losses, norms, plain.get_weights()


def pipelined_lstm(
    *,
    checkpoints: int,
    schedule: str,
    length: int = LENGTH,
    features: int = FEATURES,
    units: int = UNITS,
    batch: int = BATCH,
) -> tuple[Any, Any]:
    """Return a pipeline of a recurrent and a dense layer, and the specs of one microbatch.

    There are 4 microbatches per update.
    """
    from tensorflow.python import ipu

    configure()
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((length, features), batch_size=batch)
        with tf.keras.ipu.PipelineStage(0):
            x = recurrent(inputs, checkpoints, units)
        with tf.keras.ipu.PipelineStage(1):
            x = keras.layers.Dense(1)(x)
        model = keras.Model(inputs, x)
        model.compile("sgd", "mse", steps_per_execution=4)
        model.set_pipelining_options(
            4,
            device_mapping=[0, 0],
            pipeline_schedule=ipu.pipelining_ops.PipelineSchedule[schedule],
            recomputation_mode=ipu.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
    return model, (tf.TensorSpec((batch, length, features)), tf.TensorSpec((batch, length, 1)))
