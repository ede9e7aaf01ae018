"""A ``train_step`` of one's own is profiled on what ``fit`` passes to it."""

import keras
import numpy as np
import pytest

from keras_recompute.liveness import profile

ROWS = np.ones((4, 8), "float32")


class Autoencoder(keras.Model):
    """Trains on inputs alone, or on inputs and targets, and keeps whether it was given a tuple."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(8)
        self.was_tuple = set()

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, *given, **_):
        x, _, y_pred, *_ = given
        return keras.ops.mean(keras.ops.square(y_pred - x))

    def train_step(self, *arguments):
        *state, data = arguments
        self.was_tuple.add(isinstance(data, tuple))
        return super().train_step(*state, data)


@pytest.mark.parametrize(("data", "is_tuple"), [((ROWS,), False), ((ROWS, ROWS), True)])
def test_inputs_alone_are_no_tuple(data, is_tuple):
    model = Autoencoder()
    model.compile("sgd")
    for step in (lambda: model.fit(*data, batch_size=4, verbose=0), lambda: profile(model, *data)):
        model.was_tuple.clear()
        step()
        assert model.was_tuple == {is_tuple}
