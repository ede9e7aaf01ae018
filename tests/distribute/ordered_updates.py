"""Trains on two replicas without jit, with updates in the backward pass and after it, and prints
how far weights differ, what a section waits for, and what the process takes.

``ordered_updates OPTIMIZER...`` prints a line of JSON for each, and a last one with memory.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.graph.dataflow import operations_before
from keras_recompute.graph_traversal import reachable
from keras_recompute.liveness import process_memory
from keras_recompute.liveness.allocator import forget_free_memory
from keras_recompute.models.execution.replicated_training import ReplicatedTraining

L = keras.layers
WIDTH, LAYERS, EVERY = 512, 8, 2
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "clip all norms": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


def branched() -> keras.Model:
    """Shared, frozen and normalised layers, an embedding, and a head without a loss."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((6,), dtype="int32")
    shared, frozen = L.Dense(8, activation="tanh"), L.Dense(8, activation="tanh")
    x = L.Embedding(7, 8)(ids)
    for _ in range(2):
        x = shared(L.Dense(8, activation="gelu")(x))
        x = L.BatchNormalization()(L.Dense(8, use_bias=False)(x))
    x = shared(frozen(x))
    frozen.trainable = False
    return keras.Model(ids, [L.Dense(2)(L.Dense(8, activation="gelu")(x)), L.Dense(2)(x)])


class CustomStep(kr.Model):
    """A model with a training step of its own around Keras's."""

    def train_step(self, data: object) -> dict:
        return {**super().train_step(data), "seen": tf.constant(1.0)}


def chain() -> keras.Model:
    x = inputs = keras.Input((WIDTH,))
    for _ in range(LAYERS):
        x = L.Dense(WIDTH, activation="gelu")(x)
    return keras.Model(inputs, L.Dense(1)(x))


def weights_after(
    optimizer: Callable[[], keras.Optimizer], strategy: tf.distribute.Strategy, **compiled: bool
) -> np.ndarray:
    """Return all weights and the optimizer's variables after three batches.

    They have four samples, one, for which a replica has none, and four.
    """
    with strategy.scope():
        plain = branched()
        model = kr.checkpointed(CustomStep(plain.inputs, plain.outputs), every=2)
        model.compile(optimizer(), ["mse", None], jit_compile=False, **compiled)
    random = np.random.default_rng(0)
    ids, targets = random.integers(0, 7, (5, 6)), random.normal(size=(5, 6, 2))
    four, one = slice(0, 4), slice(4, 5)
    for batch in (four, one, four):
        data = tf.data.Dataset.from_tensors((ids[batch], (targets[batch], targets[batch])))
        model.fit(data, verbose=0)
    variables = [*model.weights, *model.optimizer.variables]
    return np.concatenate([np.asarray(v.value, "float64").ravel() for v in variables])


def difference(optimizer: Callable[[], keras.Optimizer], strategy: tf.distribute.Strategy) -> dict:
    """Return how far weights are from those with all updates at the end, and from eager ones."""
    ordered = weights_after(optimizer, strategy)
    eager = weights_after(optimizer, strategy, run_eagerly=True)
    usual = ReplicatedTraining._updates_in_backward
    ReplicatedTraining._updates_in_backward = False
    try:
        at_the_end = weights_after(optimizer, strategy)
    finally:
        ReplicatedTraining._updates_in_backward = usual
    return {
        "difference": float(np.abs(ordered - at_the_end).max()),
        "difference_eager": float(np.abs(ordered - eager).max()),
    }


def updates_before_fences(strategy: tf.distribute.Strategy) -> dict[str, list[int]]:
    """Return how many kernels each section waits for, for each replica's device."""
    with strategy.scope():
        model = kr.checkpointed(chain(), every=EVERY)
        model.compile("sgd", "mse", jit_compile=False)
        model.optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensors((np.ones((4, WIDTH), "float32"), np.ones((4, 1))))
    data = next(iter(strategy.experimental_distribute_dataset(data)))
    graph = model.on_replicas(model.train_step).get_concrete_function(data).graph
    found: dict[str, list[int]] = {}
    for operation in graph.get_operations():
        if operation.type != "Identity" or not operation.name.split("/")[-1].startswith("updates"):
            continue
        kinds = Counter(
            str(each.inputs[1].shape)
            for each in reachable([operation], operations_before)
            if each.type.startswith("AssignSub")
        )
        found.setdefault(operation.device[-1:], []).append(kinds[f"({WIDTH}, {WIDTH})"])
    return found


def peak_bytes(strategy: tf.distribute.Strategy) -> int:
    """Return what the process takes for an epoch of one step beyond weights, at its peak."""
    with strategy.scope():
        model = kr.checkpointed(chain(), every=EVERY)
        model.compile("sgd", "mse", jit_compile=False)
    x, y = np.ones((64, WIDTH), "float32"), np.ones((64, 1), "float32")
    model.fit(x, y, batch_size=64, verbose=0)
    peaks = []
    for _ in range(3):
        forget_free_memory(2**30)
        with process_memory() as measured:
            model.fit(x, y, batch_size=64, verbose=0)
        peaks.append(measured.over_idle_bytes or 0)
    return sorted(peaks)[1]


def main(names: list[str]) -> None:
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    # Grappler fuses and reorders arithmetic differently in a graph that is in one piece.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for name in names:
        print(json.dumps({"optimizer": name, **difference(OPTIMIZERS[name], strategy)}))
    found = {"waits_for": updates_before_fences(strategy), "peak_bytes": peak_bytes(strategy)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
