"""Models with replicas, and the oracle: a loop by hand that keeps each replica's state."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .pipelines import numbers

BATCH, FEATURES = 4, 5


def configure(ipus: int, **norms: int) -> None:
    from tensorflow.python import ipu

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = ipus
    config.allow_recompute = True
    for name, value in norms.items():
        setattr(config.norms.experimental, name, value)
    config.configure_ipu_system()


def layers_of(is_pipeline: bool) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Return input and output of a small network with statistics, in two stages or none."""
    from contextlib import nullcontext

    def stage(number: int) -> Any:
        return tf.keras.ipu.PipelineStage(number) if is_pipeline else nullcontext()

    inputs = keras.Input((FEATURES,), batch_size=BATCH)
    with stage(0):
        x = keras.layers.Dense(6, activation="tanh")(inputs)
        x = keras.layers.BatchNormalization(momentum=0.8)(x)
    with stage(1):
        outputs = keras.layers.Dense(2)(x)
    return inputs, outputs


def replicated(
    replicas: int,
    schedule: str | None,
    *,
    steps: int,
    accumulation: int,
    method: str = "sum",
    **norms: int,
) -> Any:
    """Return a compiled model with several replicas.

    Each is a pipeline on two IPUs, or runs on one IPU without ``schedule``.
    """
    from tensorflow.python import ipu

    configure(replicas * (2 if schedule else 1), **norms)
    with ipu.ipu_strategy.IPUStrategy().scope():
        keras.utils.set_random_seed(1)
        model = keras.Model(*layers_of(is_pipeline=schedule is not None))
        model.compile(
            keras.optimizers.SGD(0.02, momentum=0.5),
            "mse",
            metrics=["mae"],
            steps_per_execution=steps,
        )
        if schedule:
            model.set_pipelining_options(
                accumulation,
                gradient_accumulation_reduction_method=method,
                pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule[schedule],
            )
        else:
            model.set_gradient_accumulation_options(accumulation, method)
    return model


def data(microbatches: int) -> tuple[np.ndarray, np.ndarray]:
    return numbers(microbatches * BATCH, FEATURES, seed=2), numbers(microbatches * BATCH, 2, seed=3)


class ByHand:
    """The layers of ``model`` in a plain model, and the statistics of each of ``replicas``."""

    def __init__(self, model: keras.Model, weights: list[np.ndarray], replicas: int) -> None:
        self.plain = keras.Model(model.inputs[0], model.outputs[0])
        assert type(self.plain) is not type(model)
        self.plain.set_weights(weights)
        self.replicas = replicas
        self.moving = self.plain.non_trainable_variables
        self.statistics = [[v.numpy() for v in self.moving] for _ in range(replicas)]
        self.losses: list[list[float]] = [[] for _ in range(replicas)]
        self.errors: list[list[float]] = [[] for _ in range(replicas)]
        self.per_update: list[float] = []
        self.norms: list[float] = []
        variables = [v.value for v in self.plain.trainable_variables]

        @tf.function
        def gradients_of(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                predicted = self.plain(x, training=True)
                loss = tf.reduce_mean((predicted - y) ** 2)
            return tape.gradient(loss, variables), loss, tf.reduce_mean(tf.abs(predicted - y))

        self._gradients_of = gradients_of

    def train(
        self,
        x: np.ndarray,
        y: np.ndarray,
        optimizer: Any,
        *,
        accumulation: int,
        method: str = "sum",
        microbatch: int = BATCH,
        weight: float = 1.0,
    ) -> None:
        """Update with the sum over replicas of the sum, or mean, of a replica's gradients."""
        of_update, size = accumulation * self.replicas, microbatch
        for first in range(0, len(x) // size, of_update):
            total = None
            for m in range(first, first + of_update):
                replica = m % self.replicas  # microbatch i of a step goes to replica i
                rows = slice(m * size, (m + 1) * size)
                for variable, value in zip(self.moving, self.statistics[replica]):
                    variable.assign(value)
                gradients, loss, error = self._gradients_of(x[rows], y[rows])
                self.statistics[replica] = [v.numpy() for v in self.moving]
                self.losses[replica].append(float(loss))
                self.errors[replica].append(float(error))
                total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
            factor = weight if method == "sum" else weight / accumulation
            total = [g * factor for g in total]
            optimizer.apply(total, self.plain.trainable_variables)
            self.per_update.append(
                float(np.mean([losses[-accumulation:] for losses in self.losses]))
            )
            self.norms.append(float(tf.linalg.global_norm(total)))
        for variable, value in zip(self.moving, self.statistics[0]):
            variable.assign(value)
