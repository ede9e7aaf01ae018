"""What is no batch of a model's training step: one line says so, on every backend."""

import keras
import numpy as np
import pytest

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.liveness import profile

X, Y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")


@pytest.fixture(name="model", scope="module")
def compiled():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="small")
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((X.tolist(), Y), "x is or contains 1.0, a float. Make arrays of lists by numpy.array"),
        (([X, "other"], Y), "x is or contains 'other', a str"),
        ((iter([(X, Y)]),), "a list_iterator.* give one batch of a data set"),
        ((X, None, Y), "y is or contains None"),
        ((X, Y[:3]), "this one has x of 4 and y of 3 rows: give as many of each"),
        ((X, {"a": Y, "b": Y[:2]}, Y), "this one has x of 4 and y of 2 rows"),
        ((X, Y, np.ones(2)), "x of 4 and sample_weight of 2 rows"),
        ((X,), r"'small' is compiled with a loss.* as in profile\(model, x, y\)"),
        ((X, None), "'small' is compiled with a loss"),
        ((), "not 0 values"),
    ],
)
def test_no_batch(model, batch, message):
    with pytest.raises(InvalidArgumentError, match=message):
        profile(model, *batch)


def test_a_batch_in_nests_and_of_scalars():
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((3,), name="b")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["a"] + inputs["b"]))
    model.compile("sgd", "mse")
    program = profile(model, {"a": X, "b": X}, Y, np.ones(4, "float32"))
    assert program.input_feed_bytes == (2 * X.size + Y.size + 4) * 4
