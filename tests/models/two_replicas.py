"""Trains a model with checkpoints and its plain twin on two logical devices. Run as a program by ``test_replicas``.

A program of its own, because TensorFlow divides a device only before it is first used.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import keras_recompute as kr

from .networks import FEATURES, UNITS, numbers


def build(Model):
    """Dropout, whose masks replicas draw apart; a loop over equal sections; a recurrent layer."""
    inputs = keras.Input((4, FEATURES))
    x = kr.RecomputationCheckpoint()(kr.GRU(UNITS, return_sequences=True)(inputs))
    x = keras.layers.Dropout(0.3, seed=1)(x)
    shared = keras.layers.Dense(UNITS, activation="tanh")
    for _ in range(3):
        x = kr.RecomputationCheckpoint()(shared(x))
    return Model(inputs, keras.layers.Dense(1)(x))


def main() -> None:
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    x, y = numbers(16, 4, FEATURES), numbers(16, 4, 1, seed=1)
    trained = []
    for model_class in (kr.Model, keras.Model):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = build(model_class)
            model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        trained.append((history.history["loss"], model.get_weights(), model))
    (ours, our_weights, model), (plain, plain_weights, _) = trained
    assert model.plan.recomputes
    assert strategy.num_replicas_in_sync == 2
    np.testing.assert_allclose(ours, plain, rtol=1e-5)
    for a, b in zip(our_weights, plain_weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    print(f"{strategy.num_replicas_in_sync} replicas, losses {ours}")


if __name__ == "__main__":
    main()
