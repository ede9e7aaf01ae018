"""The training step that Keras's peers and ours share: everything but the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf
from workloads import RATE, Workload, data

from . import DeviceMemory, Peer


def peer(
    workload: Workload,
    forward: Callable[[tf.Tensor], tf.Tensor],
    variables: list[Any],
    *,
    jit: bool,
) -> Peer:
    """Return the peer that trains ``variables`` through ``forward``, in one ``tf.function``."""
    tf.config.experimental.enable_tensor_float_32_execution(
        False
    )  # on a GPU, all peers compute in float32
    x, y = _tensors(workload)
    step = training_step(forward, variables, jit=jit)

    def temporary_bytes() -> int | None:
        if not jit:
            return None
        # A reader of compiled programs: it changes nothing in the peer's process, and runs after
        # the measurements.
        from keras_recompute.liveness import profile

        return profile(step, x, y).allocated_temporary_bytes

    return Peer(
        lambda: tuple(float(value) for value in step(x, y)), temporary_bytes, device_memory()
    )


def training_step(
    forward: Callable[[tf.Tensor], tf.Tensor], variables: list[Any], *, jit: bool
) -> Any:
    """Return the step as a ``tf.function`` of inputs and targets, which returns the loss and the
    norm of the gradients.
    """

    @tf.function(jit_compile=jit, autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(forward(x) - y))
        gradients = tape.gradient(loss, variables)
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients]))
        for variable, gradient in zip(variables, gradients):
            variable.assign_sub(RATE * gradient)
        return loss, norm

    return step


def adam_step(forward: Callable[[tf.Tensor], tf.Tensor], variables: list[Any]) -> Any:
    """Return the step with Keras's Adam as a ``tf.function`` for XLA, which returns the loss.

    Updates are ordered as in ``fit``, where ``forward`` has sections.
    """
    import keras

    from keras_recompute.engine.emit.update_order import ordered_updates

    optimizer = keras.optimizers.Adam(RATE)
    optimizer.build(variables)

    @tf.function(jit_compile=True, autograph=False)
    def step(x, y):
        with ordered_updates():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(forward(x) - y))
            gradients = tape.gradient(loss, [v.value for v in variables])
            optimizer.apply(gradients, variables)
        return loss

    return step


# A planner makes several peers, and what one leaks would not be seen when the next is measured.
@cache
def _tensors(workload: Workload) -> tuple[tf.Tensor, ...]:
    return tuple(tf.constant(array) for array in data(workload))


def device_memory() -> DeviceMemory | None:
    """Return the allocator of the first GPU, if there is one."""
    if not tf.config.list_logical_devices("GPU"):
        return None
    statistics = tf.config.experimental
    return DeviceMemory(
        lambda: statistics.get_memory_info("GPU:0")["current"],
        lambda: statistics.get_memory_info("GPU:0")["peak"],
        lambda: statistics.reset_memory_stats("GPU:0"),
    )
