"""Compiled programs that several tests look at."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

from small_programs import scan, serialized  # noqa: E402

from keras_recompute.liveness import Program, profile  # noqa: E402


@pytest.fixture(scope="session")
def scan_bytes() -> bytes:
    """The serialized program of a loop of eight turns."""
    return serialized(scan(8), tf.TensorSpec((64, 32)))


@pytest.fixture(scope="session")
def scan_program() -> Program:
    """The record of a loop of eight turns, its input fed."""
    return profile(scan(8), tf.TensorSpec((64, 32)), input_feed=["x"])


@pytest.fixture(scope="session")
def training_program() -> Program:
    """One Adam step of a small Keras model with a loop and dropout."""
    keras = pytest.importorskip("keras")
    inputs = keras.Input((32, 8), batch_size=4)
    x = keras.layers.LSTM(16, return_sequences=True, name="lstm")(inputs)
    x = keras.layers.Dropout(0.3, name="drop")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(x), name="net")
    # Without a number, however many were made before
    optimizer = keras.optimizers.Adam(name="adam")
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    compiled = tf.function(step, jit_compile=True, autograph=False)
    return profile(
        compiled, tf.TensorSpec((4, 32, 8)), tf.TensorSpec((4, 32, 1)), input_feed=["x", "y"]
    )
