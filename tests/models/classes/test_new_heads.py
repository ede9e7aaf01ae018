"""New models made of the layers of a checkpointed one: they say that they recompute nothing, and
the remedy works.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from keras_recompute.liveness import profile

L = keras.layers
X, Y = np.ones((4, 16), "float32"), np.ones((4, 1), "float32")


def network():
    x = inputs = keras.Input((16,))
    for n in range(8):
        x = L.Dense(16, "gelu", name=f"d{n}")(x)
    return keras.Model(inputs, L.Dense(2, name="old")(x), name="base")


WAYS = {
    "every": lambda m: kr.checkpointed(m, every=3),
    "layers": lambda m: kr.checkpointed(m, layers="d*"),
}
HEADS = {
    "get_layer": lambda m: keras.Model(m.input, L.Dense(1)(m.get_layer("d7").output)),
    "layers": lambda m: keras.Model(m.inputs, L.Dense(1)(m.layers[-2].output)),
    "list": lambda m: keras.Sequential([keras.Input((16,)), *m.layers[1:4], L.Dense(1)]),
}


def said(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(w.message) for w in caught if isinstance(w.message, RecomputeWarning)]


def train(model, times=1):
    model.compile("adam", "mse")
    for _ in range(times):
        model.train_on_batch(X, Y)


@pytest.mark.parametrize("way", ["every", pytest.param("layers", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "head",
    ["get_layer", *(pytest.param(head, marks=pytest.mark.long) for head in ("layers", "list"))],
)
def test_a_new_head_on_layers_says_once_that_it_recomputes_nothing(way, head):
    model = WAYS[way](network())
    new = HEADS[head](model)
    assert not said(lambda: new.predict(X, verbose=0)), "inference needs no checkpoints"
    messages = said(lambda: train(new, times=2))
    assert len(messages) == 1
    assert "layers of 'base' and recomputes nothing" in messages[0]


def test_a_loop_of_ones_own_is_told_too():
    new = HEADS["get_layer"](WAYS["every"](network()))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(new(X))
        tape.gradient(loss, new.trainable_variables)

    assert len(said(step)) == 1
    assert not said(step)


@pytest.mark.long
def test_the_remedies_recompute():
    def temporaries(model):
        model.compile("sgd", "mse", jit_compile=True)
        specs = tf.TensorSpec((1024, 16)), tf.TensorSpec((1024, 1))
        return profile(model, *specs).allocated_temporary_bytes

    model = WAYS["every"](network())
    plain = HEADS["get_layer"](network())
    remedies = [
        kr.checkpointed(HEADS["get_layer"](model), every=3),
        kr.Model(model.input, L.Dense(1)(model.output)),
    ]
    for remedy in remedies:
        assert not said(lambda remedy=remedy: train(remedy))
        assert temporaries(remedy) < 0.7 * temporaries(plain)


@pytest.mark.long
def test_others_are_not_told():
    base = network()
    WAYS["every"](base)
    shared = base.get_layer("d3")
    x = inputs = keras.Input((16,))
    for layer in (L.Dense(16), shared, L.Dense(1)):
        x = layer(x)
    assert not said(lambda: train(keras.Model(inputs, x))), "one layer that is shared is no head"
    inside = keras.Sequential([keras.Input((16,)), WAYS["every"](network()), L.Dense(1)])
    assert not said(lambda: train(inside)), "the model inside recomputes"


def test_constructors_are_taken_for_what_they_were():
    """Keras compares parameters of constructors with those of its own."""

    class Own(keras.Model):
        def __init__(self):
            inputs = keras.Input((16,))
            super().__init__(inputs, L.Dense(1)(inputs))

    WAYS["every"](network())
    own = Own()
    with pytest.raises((NotImplementedError, TypeError)):
        keras.models.clone_model(own).from_config(own.get_config())
    assert type(keras.models.clone_model(network())) is type(network())
