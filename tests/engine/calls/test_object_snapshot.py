"""What eager calls draw and count in Python, which a trace does only once: warnings name it."""

import random
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning

L = keras.layers
X = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
ONCE = "this happened now and will not happen at later calls"


class Skips(L.Layer):
    def call(self, x):
        return keras.ops.gelu(x) if random.random() < 2 else x


class Scales(L.Layer):
    def call(self, x):
        return keras.ops.gelu(x) * np.random.uniform()


class Draws(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.source = np.random.default_rng(0)

    def call(self, x):
        return keras.ops.gelu(x) * self.source.uniform()


class Counts(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.calls = 0

    def call(self, x):
        self.calls += 1
        return keras.ops.gelu(x) * self.calls


class Records(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norms = []

    def call(self, x):
        self.norms.append(1)
        return keras.ops.gelu(x)


SAID = {
    Skips: "draws from Python's random module",
    Scales: r"draws from numpy\.random",
    Draws: "draws from 'source' of 'one'",
    Counts: "changes 'calls' of 'one'",
    Records: "changes 'norms' of 'one'",
}


def network(kind):
    inputs = keras.Input((8,))
    x = kind(name="one")(L.Dense(8)(inputs))
    return keras.Model(inputs, L.Dense(1)(L.Dense(8, "gelu")(x)))


@pytest.mark.parametrize("place", [{"every": 2}, {"layers": "one"}], ids=["every", "layers"])
@pytest.mark.parametrize("kind", SAID)
def test_a_layer_in_an_eager_step(kind, place):
    model = kr.checkpointed(network(kind), **place)
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.warns(RecomputeWarning, match=f"{SAID[kind]}: {ONCE}"):
        model.train_on_batch(X, X[:, :1])


@pytest.mark.parametrize("kind", SAID)
def test_a_layer_in_a_graph_runs_once_in_the_plain_model_too(kind):
    model = kr.checkpointed(network(kind), every=2)
    model.compile("sgd", "mse", jit_compile=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{ONCE}")
        model.train_on_batch(X, X[:, :1])


def test_a_step_without_such_python_says_nothing():
    """Weights and Keras's generators are made in the first call, with seeds that Python draws."""

    class Block(L.Layer):
        def build(self, shape):
            self.dense = L.Dense(8)
            self.dense.build(shape)

        def call(self, x):
            return keras.ops.gelu(self.dense(x)) + keras.random.normal((8,))

    class Blocks(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [kr.checkpoint(Block()) for _ in range(2)]

        def call(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = Blocks()
    model.compile("sgd", "mse", run_eagerly=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        for _ in range(2):
            model.train_on_batch(X, X)


SOURCES = {
    "generator": (np.random.default_rng(0), lambda source: source.random()),
    "random numbers": (random.Random(0), lambda source: source.random()),
    "iterator": (iter([1.0, 2.0, 3.0, 4.0]), next),
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_function_closes_over(source):
    held, draw = SOURCES[source]
    function = kr.checkpoint(lambda x: tf.sin(tf.tanh(x) * draw(held)))
    with pytest.warns(RecomputeWarning, match=f"changes the {type(held).__name__} 'held': {ONCE}"):
        function(tf.ones(3))
