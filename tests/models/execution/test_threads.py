"""A model that several threads call first, together."""

from __future__ import annotations

import keras
import tensorflow as tf
from engine.calls.test_threads import together

import keras_recompute as kr
from tests.oracle import assert_all_close, loss_and_gradients


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
        return loss_and_gradients(model, data[n], mode="eager")

    found = together(lambda n: gradients(model, n))
    assert len(model._eager_partitions) == 1  # all of them were recomputed, by one program
    for n, ours in enumerate(found):
        assert_all_close(ours, gradients(plain, n), rtol=1e-5, atol=1e-5)
