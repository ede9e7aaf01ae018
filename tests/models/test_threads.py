"""A model that several threads call first, together."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from engine.test_threads import together

import keras_recompute as kr


def test_a_model_that_threads_call_first():
    x = inputs = keras.Input((8,))
    for _ in range(3):
        x = kr.RecomputationCheckpoint()(
            keras.layers.Dense(8, "gelu")(keras.layers.Dense(8, "tanh")(x))
        )
    model = kr.Model(inputs, keras.layers.Dense(1)(x))
    plain = keras.Model(model.inputs, model.outputs)
    data = tf.random.stateless_normal((8, 4, 8), (1, 2))

    def gradients(model, n):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(data[n], training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    found = together(lambda n: gradients(model, n))
    assert len(model._eager_partitions) == 1  # all of them were recomputed, by one program
    for n, ours in enumerate(found):
        for one, other in zip(ours, gradients(plain, n)):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
