"""Trains a model with an embedding and a head without a loss, alone and on two replicas; prints how
far weights differ.
"""

from __future__ import annotations

import contextlib
import json

import keras
import numpy as np
import tensorflow as tf

import keras_recompute as kr

L = keras.layers
SAMPLES = 6


def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    ids = keras.Input((5,), dtype="int32")
    x = L.Embedding(12, 6)(ids)
    for n in range(4):
        x = L.Dense(6, "tanh", name=f"dense_{n}")(x)
    x = L.Flatten()(x)
    idle = L.Dense(2, name="idle")(L.Dense(3, name="idle_dense")(x))
    return keras.Model(ids, [L.Dense(2, name="a")(x), idle])


def weights_after(wrap, scope) -> np.ndarray:
    with scope:
        model = wrap(network())
        # With a larger epsilon rounding moves no weight by a whole step.
        optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.3, epsilon=1e-3)
        model.compile(optimizer, ["mse", None])
    ids = np.random.default_rng(0).integers(0, 12, (SAMPLES, 5))
    targets = (np.ones((SAMPLES, 2)), np.ones((SAMPLES, 2)))
    # The last batch has a sample for one replica alone.
    data = tf.data.Dataset.from_tensor_slices((ids, targets)).batch(5)
    model.fit(data, epochs=2, verbose=0)
    return np.concatenate([np.asarray(w.value).ravel() for w in model.weights])


def main() -> None:
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    plain = weights_after(lambda model: model, contextlib.nullcontext())
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    ours = weights_after(lambda model: kr.checkpointed(model, every=2), strategy.scope())
    print(json.dumps({"difference": float(np.abs(ours - plain).max())}))


if __name__ == "__main__":
    main()
