"""Arguments and functions that are seldom thought of: they work as in the plain function, or one
line says what to do.
"""

from __future__ import annotations

import collections.abc
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError
from tests.oracle import assert_all_close

X = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float32)


def function(x, *_):
    return tf.sin(tf.sin(x))


class Table(collections.abc.Mapping):
    def __init__(self, key, value):
        self._held = {key: value}

    def __getitem__(self, key):
        return self._held[key]

    def __iter__(self):
        return iter(self._held)

    def __len__(self):
        return len(self._held)


@pytest.mark.parametrize(
    "training",
    [True, False, np.True_, np.bool_(0), np.array(True), tf.constant(True), tf.constant(False)],
)
@pytest.mark.parametrize("is_named", [True, False], ids=["keyword", "position"])
def test_training_of_any_kind_of_truth(training, is_named):
    def run(wrap):
        layer = keras.layers.BatchNormalization()
        layer.build(X.shape)

        def call(x, training=None):
            return tf.sin(layer(x, training=training))

        y = wrap(call)(X, training=training) if is_named else wrap(call)(X, training)
        return [y, *layer.variables]

    assert_all_close(run(kr.checkpoint), run(lambda call: call), rtol=1e-5, atol=1e-6)


def test_a_layer_takes_them_too():
    layer = keras.layers.BatchNormalization()
    layer.build(X.shape)
    np.testing.assert_allclose(
        kr.checkpoint(layer)(X, training=np.True_), layer(X, training=True), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "nest",
    [
        types.MappingProxyType({"x": X}),
        {1: X, "x": X},
        collections.ChainMap({"x": X}),
        types.SimpleNamespace(x=X),
    ],
    ids=lambda nest: type(nest).__name__,
)
def test_unusual_containers(nest):
    def of(nest):
        return tf.sin(tf.sin(nest.x if hasattr(nest, "x") else nest["x"]))

    np.testing.assert_allclose(kr.checkpoint(of)(nest), function(X), rtol=1e-6)


OBJECTS = np.array([object()])
RECORDS = np.zeros(2, [("a", "float32")])


def tables(x, first=None, second=None):  # noqa: ARG001
    return tf.sin(x)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: kr.checkpoint(tables)(X, OBJECTS),
            "'tables' was called .* of object, as first, .* as a list or a tuple",
        ),
        (
            lambda: kr.checkpoint(tables)(X, 1, {"a": [X, OBJECTS]}),
            r"of object, as second\['a'\]\[1\], and no tensor",
        ),
        (lambda: kr.checkpoint(tables)(X, second=OBJECTS), "of object, as second, and no tensor"),
        (lambda: kr.checkpoint(tables)(X, RECORDS), "<f4.*, as first, and no tensor"),
        (
            lambda: kr.checkpoint(lambda x: (x, OBJECTS))(X),
            "returned a NumPy array of object.* as a list or a tuple",
        ),
        (
            lambda: kr.checkpoint(function)(X, Table("x", X)),
            "a Table cannot be made from a dict.*use a dict",
        ),
        (
            lambda: kr.checkpoint_name({"a": X}, "half"),
            "a dict cannot be marked. Mark each tensor in it",
        ),
        (lambda: kr.policies.either(kr.policies.save_nothing, None), "None is not a policy"),
        (
            lambda: kr.checkpoint(lambda x: keras.layers.Dense(2)(x) + 1.0)(X),
            "creates a variable, or a layer.*Create it once",
        ),
        (
            lambda: kr.checkpoint(lambda x: tf.Variable(2.0) * x)(X),
            "creates a variable, or a layer.*Create it once",
        ),
    ],
)
def test_what_does_not_work_is_said_in_a_line(call, says):
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=says):
            call()
