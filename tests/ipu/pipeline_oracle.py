"""Small models in stages, and the oracle: a plain Keras model of the same layers.

It is trained with the accumulated gradient.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .pipelines import configure, numbers

BATCH, WIDTH = 4, 6


# Graphcore's documentation, for two stages and four microbatches. In Interleaved position j has
# microbatch m at time 2m + j.
ORDERS = {
    "Grouped": (
        "F0m0 | F1m0 F0m1 | B1m0 F1m1 F0m2 | B0m0 B1m1 F1m2 F0m3 | B0m1 B1m2 F1m3 | B0m2 B1m3 | "
        "B0m3"
    ),
    "Interleaved": (
        "F0m0 | F1m0 | B1m0 F0m1 | B0m0 F1m1 | B1m1 F0m2 | B0m1 F1m2 | B1m2 F0m3 | B0m2 F1m3 | "
        "B1m3 | B0m3"
    ),
    "Sequential": (
        "F0m0 F1m0 B1m0 B0m0 | F0m1 F1m1 B1m1 B0m1 | F0m2 F1m2 B1m2 B0m2 | F0m3 F1m3 B1m3 B0m3"
    ),
}


def stage(number: int) -> Any:
    return tf.keras.ipu.PipelineStage(number)


def layers_of(stages: int, *, shares: bool) -> keras.Model:
    """Return (inputs, outputs) of a model with two inputs and two outputs.

    It has a shared layer, dropout, statistics, and a value that skips stages. Checkpoints are in
    the first stage and in the last. Without ``shares`` no layer is shared.
    """
    import ipu_tensorflow_addons.keras.layers as ipu_layers

    a = keras.Input((WIDTH,), batch_size=BATCH, name="a")
    b = keras.Input((3,), batch_size=BATCH, name="b")
    shared = keras.layers.Dense(WIDTH, activation="tanh", name="shared")
    with stage(0):
        x = shared(a)
        x = ipu_layers.RecomputationCheckpoint()(x)
        x = keras.layers.Dropout(0.4, seed=7)(x)
        x = keras.layers.Dense(WIDTH, activation="sigmoid")(x)
        skipping = keras.layers.Dense(
            2, name="skipping", activity_regularizer=keras.regularizers.L2(0.05)
        )(x)
    for number in range(1, stages - 1):
        with stage(number):
            x = keras.layers.Dense(WIDTH, activation="tanh")(x)
            x = ipu_layers.RecomputationCheckpoint()(x)
            x = keras.layers.BatchNormalization(momentum=0.8)(x)
    with stage(stages - 1):
        again = shared if shares else keras.layers.Dense(WIDTH, activation="tanh")
        x = keras.layers.Concatenate()([again(x), b])
        x = keras.layers.Dense(
            WIDTH, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01)
        )(x)
        x = ipu_layers.RecomputationCheckpoint()(x)
        x = keras.layers.Dropout(0.2, seed=8)(x)
        first = keras.layers.Dense(2, name="first")(x)
        second = keras.layers.Add(name="second")([keras.layers.Dense(2)(x), skipping])
    return [a, b], [first, second]


def data(microbatches: int) -> tuple[Any, Any, Any]:
    """Return inputs, targets and sample weights."""
    rows = microbatches * BATCH
    return (
        [numbers(rows, WIDTH, seed=1), numbers(rows, 3, seed=2)],
        [numbers(rows, 2, seed=3), numbers(rows, 2, seed=4)],
        [np.abs(numbers(rows, seed=5)), np.abs(numbers(rows, seed=6))],
    )


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    metrics = [["mae"], ["mse"]]
    # Not Adam: it would divide rounding by rounding where a gradient is zero, as that of a bias
    # before a normalisation is.
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, decay_steps=5, decay_rate=0.7)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.5),
        ["mse", "mae"],
        loss_weights=[1.0, 0.3],
        weighted_metrics=metrics,
        **options,
    )
    return model


def pipelined(
    stages: int,
    schedule: str,
    mode: str | None,
    *,
    microbatches: int,
    updates: int = 1,
    **options: Any,
) -> Any:
    """Return the pipelined model; ``mode`` None means without recomputation.

    All stages are on one IPU, as those that share a layer must be, but for the Interleaved
    schedule, which trains on no such.
    """
    from tensorflow.python import ipu

    shares = schedule != "Interleaved"
    configure(recompute=mode is not None)
    with ipu.ipu_strategy.IPUStrategy().scope():
        keras.utils.set_random_seed(1)
        model = compiled(
            keras.Model(*layers_of(stages, shares=shares)),
            steps_per_execution=microbatches * updates,
        )
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=microbatches,
            device_mapping=[0] * stages if shares else None,
            pipeline_schedule=ipu.pipelining_ops.PipelineSchedule[schedule],
            recomputation_mode=ipu.pipelining_ops.RecomputationMode[mode or "Auto"],
            **options,
        )
    return model


def trained_plainly(
    stages: int, *, microbatches: int, updates: int, shares: bool, mean: bool = False
) -> tuple[list[float], list[Any], Any]:
    """Return losses per update, final weights and metrics of Keras's own model and loop."""
    from tensorflow.python import ipu

    with (
        ipu.ipu_strategy.IPUStrategy().scope()
    ):  # for the stages' contexts; they mean nothing to the plain model
        keras.utils.set_random_seed(1)
        inputs, outputs = layers_of(stages, shares=shares)
    model = compiled(keras.Model(inputs, outputs))
    x, y, weights = data(microbatches * updates)
    model.optimizer.build(model.trainable_variables)
    variables = [v.value for v in model.trainable_variables]

    @tf.function(jit_compile=True)
    def gradients_of(x: Any, y: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=w, training=True)
        model._loss_tracker.update_state(loss, sample_weight=BATCH)
        model.compute_metrics(x, y, y_pred, sample_weight=w)
        return loss, tape.gradient(loss, variables)

    losses = []
    model.reset_metrics()
    for update in range(updates):
        total, seen = None, []
        for m in range(update * microbatches, (update + 1) * microbatches):
            rows = slice(m * BATCH, (m + 1) * BATCH)
            part = [[tf.constant(a[rows]) for a in group] for group in (x, y, weights)]
            loss, gradients = gradients_of(*part)
            total = gradients if total is None else [p + q for p, q in zip(total, gradients)]
            seen.append(float(loss))
        if mean:
            total = [g / microbatches for g in total]
        model.optimizer.apply(total, model.trainable_variables)
        losses.append(float(np.mean(seen)))
    return losses, model.get_weights(), {k: float(v) for k, v in model.get_metrics_result().items()}
