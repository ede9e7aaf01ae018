"""Types and shapes in place of tensors, in nests of any kind: nothing of their size is made."""

from __future__ import annotations

import collections
import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.liveness import profile

HUGE = tf.TensorSpec((10**6, 10**6))  # 4 TB
Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Open:
    """A data class that TensorFlow looks into."""

    a: tf.TensorSpec
    b: tf.TensorSpec

    def __tf_flatten__(self):
        return (), (self.a, self.b)

    @classmethod
    def __tf_unflatten__(cls, _, fields):
        return cls(*fields)


@dataclasses.dataclass
class Closed:
    a: tf.TensorSpec


def corner(x):
    return tf.reduce_sum(tf.sin(x[:8, :8]))


def two_corners(pair):
    a, b = tf.nest.flatten(pair)
    return corner(a) + corner(b)


@pytest.mark.parametrize(
    "nest",
    [
        {"a": HUGE, "b": HUGE},
        [HUGE, HUGE],
        (HUGE, {"b": HUGE}),
        Pair(HUGE, HUGE),
        Open(HUGE, HUGE),
    ],
    ids=["dict", "list", "nested", "named tuple", "data class"],
)
def test_a_nest_of_specs_is_compiled_as_specs_are(nest):
    fed = 2 * 4 * 10**12
    program = profile(two_corners, nest, input_feed=["pair"])
    assert program.input_feed_bytes == fed
    flat = profile(lambda a, b: two_corners((a, b)), HUGE, HUGE, input_feed=["a", "b"])
    assert program.peak_bytes == flat.peak_bytes < 2**20


def test_specs_stand_beside_other_arguments():
    def step(x, mask, training=False):
        return corner(x) if training and mask is None else 0.0

    program = profile(step, HUGE, None, training=True, input_feed=["x"])
    assert program.input_feed_bytes == 4 * 10**12


def test_the_batch_of_a_model_is_not_made_whatever_nest_it_is():
    inputs = {name: keras.Input((8,), name=name) for name in "ab"}
    outputs = keras.layers.Dense(1)(keras.layers.Add()(list(inputs.values())))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", jit_compile=True)
    rows = 10**9
    x = {name: tf.TensorSpec((rows, 8)) for name in "ab"}
    assert profile(model, x, tf.TensorSpec((rows, 1))).input_feed_bytes == rows * 17 * 4


def test_a_value_beside_specs_is_taken_as_it_is():
    def reshaped(x, shape):
        return tf.reduce_sum(tf.reshape(x, shape), axis=0)

    # XLA has to know the shape when it compiles.
    program = profile(reshaped, tf.TensorSpec((4, 6)), np.array([2, 12]))
    assert program.allocated_temporary_bytes >= 12 * 4


def test_what_cannot_be_looked_into_or_compiled_is_one_line():
    with pytest.raises(InvalidArgumentError, match=r"x holds a Closed, a data class"):
        profile(lambda x: corner(x.a), Closed(HUGE))
    with pytest.raises(InvalidArgumentError, match=r"'x' has the shape \(None, 8\)"):
        profile(lambda x: corner(x["a"]), {"a": tf.TensorSpec((None, 8))})
