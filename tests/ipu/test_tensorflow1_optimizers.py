"""Optimisers of ``tf.compat.v1.train`` in ``compile`` train as TensorFlow 1's did."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from .pipelines import configure, numbers

pytestmark = pytest.mark.usefixtures("graphcore_names")
V1 = tf.compat.v1.train
STEPS, ROWS = 4, 2


@pytest.fixture
def model():
    from tensorflow.python import ipu

    configure()
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((3,), batch_size=ROWS)
        yield keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))


@pytest.mark.parametrize(
    "make",
    [
        lambda: V1.GradientDescentOptimizer(0.1),
        lambda: V1.MomentumOptimizer(0.1, 0.9),
        lambda: V1.MomentumOptimizer(tf.constant(0.1), 0.9, use_nesterov=True),
        lambda: V1.AdamOptimizer(0.1, 0.8, 0.9, 1e-3),
    ],
    ids=["descent", "momentum", "nesterov", "adam"],
)
@pytest.mark.parametrize("by_name", [pytest.param(True, marks=pytest.mark.long), False])
def test_updates_are_those_of_tensorflow_1(model, make, by_name):
    """Against the optimiser itself, in eager mode."""
    x, y = numbers(STEPS * ROWS, 3), numbers(STEPS * ROWS, 1, seed=1)
    [start] = model.get_weights()
    model.compile(optimizer=make(), loss="mse") if by_name else model.compile(make(), "mse")
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    weights, optimizer = tf.Variable(start), make()
    for step in range(STEPS):
        rows = slice(step * ROWS, (step + 1) * ROWS)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x[rows] @ weights - y[rows]) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    np.testing.assert_allclose(model.get_weights()[0], weights.numpy(), rtol=1e-4, atol=1e-5)
    assert np.abs(weights.numpy() - start).max() > 0.05


def test_one_without_a_counterpart(model):
    with pytest.raises(
        NotImplementedError,
        match=r"train\.AdadeltaOptimizer\(\.\.\.\)\) is not .* Use one of keras\.optimizers",
    ):
        model.compile(V1.AdadeltaOptimizer(), "mse")
