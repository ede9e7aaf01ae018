"""What is saved, loaded, pickled and copied: every way to recompute, in every kind of model.

Each cell gives a model with the same outputs, which trains to the same weights and recomputes.
"""

from __future__ import annotations

import copy
import functools
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import UnsupportedError
from tests.oracle import assert_all_close

pytestmark = pytest.mark.filterwarnings(
    "ignore:.build... was called on layer",  # Keras, of layers without a build of their own
    "ignore::DeprecationWarning",
)

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
REGISTERED = keras.saving.register_keras_serializable(package="tests.saved")


@REGISTERED
class Block(keras.layers.Layer):
    """Built by a symbolic call; with statistics, and a loss of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.norm = (
            keras.layers.Dense(6, "gelu"),
            keras.layers.BatchNormalization(momentum=0.5),
        )

    def call(self, x, training=None):
        y = self.norm(self.dense(x), training=training)
        self.add_loss(0.01 * tf.reduce_sum(y**2))
        return x + tf.exp(tf.sin(y))


@REGISTERED
class Decorated(Block):
    call = kr.checkpoint(Block.call)


def layers_of(row):
    """Return the layers of the model of a ``row``: two blocks and a head."""
    kind = Decorated if row == "decorated" else Block
    blocks = [kind(name=f"block_{n}") for n in range(2)]
    if row == "wrapped":
        blocks = [kr.checkpoint(block) for block in blocks]
    if row == "checkpoint layers":
        marks = [kr.RecomputationCheckpoint(name=f"mark_{n}") for n in range(2)]
        blocks = [layer for pair in zip(blocks, marks, strict=True) for layer in pair]
    return [*blocks, keras.layers.Dense(2, name="head")]


def chained(layers):
    inputs = x = keras.Input((6,))
    for layer in layers:
        x = layer(x)
    return inputs, x


@REGISTERED
class OwnConstructor(keras.Model):
    """Functional inside, by a constructor of its own, as KerasHub's models."""

    def __init__(self, row, **kwargs):
        super().__init__(*chained(layers_of(row)), **kwargs)
        self.row = row

    def get_config(self):
        return {"row": self.row, "name": self.name}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@REGISTERED
class OwnCall(keras.Model):
    """A model whose ``call`` is its own: layers in a list."""

    def __init__(self, row, **kwargs):
        super().__init__(**kwargs)
        self.parts, self.row = layers_of(row), row

    def call(self, x, training=None):
        for part in self.parts[:-1]:
            x = part(x, training=training)
        return self.parts[-1](x)

    def get_config(self):
        return {"row": self.row, "name": self.name}


def base(row, column):
    if column == "sequential":
        return keras.Sequential([keras.Input((6,)), *layers_of(row)], name="net")
    if column == "functional":
        return (kr.Model if row == "checkpoint layers" else keras.Model)(
            *chained(layers_of(row)), name="net"
        )
    if column == "own constructor":
        return OwnConstructor(row, name="net")
    model = OwnCall(row, name="net")
    model(X)
    return model


OPTIONS = {
    "every=": {"every": 1},
    "at=": {"at": "block_0"},
    "layers=": {"layers": Block},
    "checkpoint layers": {},
}


def make(row, column):
    model = base(row, column)
    if row not in OPTIONS or (row, column) == ("checkpoint layers", "functional"):
        return model
    return kr.checkpointed(model, **OPTIONS[row])


def saved(model, _, path):
    model.save(path / "model.keras")
    return keras.saving.load_model(path / "model.keras")


def with_weights_of_a_file(model, cell, path):
    model.save_weights(path / "model.weights.h5")
    new = make(*cell)
    new.load_weights(path / "model.weights.h5")
    return new


def cloned(model, *_, **options):
    new = keras.models.clone_model(model, **options)
    new(X)
    new.set_weights(model.get_weights())
    return new


OPERATIONS = {
    ".keras": saved,
    "weights": with_weights_of_a_file,
    "pickle": lambda model, *_: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, *_: copy.deepcopy(model),
    "clone": cloned,
}


def train(model):
    """Take two steps, and return the weights and what the program computes."""
    weights = [v.value for v in model.trainable_variables]

    @functools.partial(tf.function, autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2) + tf.add_n(model.losses)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)

    program = step.get_concrete_function(tf.TensorSpec(X.shape))
    for _ in range(2):
        program(tf.constant(X))
    return model.get_weights(), program.graph.as_graph_def()


def recomputes(graph):
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    return any("recomputation.backward" in node.name for node in nodes)


@functools.cache
def plain_model():
    """Return weights and outputs of the plain model, and the weights to which it trains."""
    keras.utils.set_random_seed(0)
    model = base("plain", "functional")
    weights, outputs = model.get_weights(), model(X).numpy()
    trained, graph = train(model)
    assert not recomputes(graph)
    return weights, outputs, trained


@functools.cache
def model_of(row, column):
    model = make(row, column)
    model.set_weights(plain_model()[0])
    return model


ROWS = ("checkpoint layers", "every=", "at=", "layers=", "decorated", "wrapped")
COLUMNS = ("functional", "sequential", "own constructor", "own call")
CELLS = [
    (row, column) for row in ROWS for column in COLUMNS if column != "own call" or row in ROWS[3:]
]
# Keras makes the clone by its own class, where the constructor is not Keras's.
REFUSED = {(row, "own constructor", "clone") for row in ROWS[:4]}
QUICK = {
    ("checkpoint layers", "functional", "pickle"),
    ("every=", "own constructor", "pickle"),
    ("at=", "sequential", "deepcopy"),
    ("layers=", "own call", ".keras"),
    ("layers=", "functional", "clone"),
    ("decorated", "own call", "weights"),
    ("wrapped", "functional", ".keras"),
    ("every=", "own constructor", "clone"),
    ("wrapped", "own call", "pickle"),
}
TABLE = [
    pytest.param(
        row, column, operation, marks=() if (row, column, operation) in QUICK else pytest.mark.long
    )
    for row, column in CELLS
    for operation in OPERATIONS
]


@pytest.mark.parametrize(("row", "column", "operation"), TABLE)
def test_it_is_the_same_model(tmp_path, row, column, operation):
    model = model_of(row, column)
    if (row, column, operation) in REFUSED:
        with pytest.raises(UnsupportedError, match="clone_model of 'net' would not recompute"):
            OPERATIONS[operation](model, (row, column), tmp_path)
        return
    new = OPERATIONS[operation](model, (row, column), tmp_path)
    _, outputs, wanted = plain_model()
    assert not {id(v) for v in new.variables} & {id(v) for v in model.variables}
    np.testing.assert_allclose(new(X), outputs, rtol=1e-5, atol=1e-6)
    found, graph = train(new)
    assert recomputes(graph)
    assert_all_close(found, wanted, rtol=2e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("row", "column"), CELLS)
def test_an_export_infers_the_same(tmp_path, row, column):
    model = model_of(row, column)
    model.export(tmp_path, verbose=False)
    exported = tf.saved_model.load(tmp_path)
    np.testing.assert_allclose(exported.serve(X), plain_model()[1], rtol=1e-5, atol=1e-6)
