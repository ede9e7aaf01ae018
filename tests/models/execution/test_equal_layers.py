"""Layers that are recomputed one by one and are alike share one trace: the values, gradients,
losses and random numbers of each are its own, and so are its names.

Looks at what is built: a trace too many shows in neither values nor the compiled program, only in
time.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine import Checkpointed
from keras_recompute.liveness import profile
from tests.oracle import assert_all_close, loss_and_gradients

COUNT, LENGTH, WIDTH = 4, 6, 8
X = np.random.default_rng(0).normal(size=(4, LENGTH, WIDTH)).astype(np.float32)


class Attentions(keras.Model):
    """Attention layers of Keras's own, called from a loop in Python; residual connections."""

    def __init__(self, kind=keras.layers.MultiHeadAttention):
        super().__init__()
        self.attentions = []
        for number in range(COUNT):
            attention = kind(
                2, 4, dropout=0.5, activity_regularizer="l2", name=f"attention_{number}"
            )
            self.attentions.append(attention)
        self.head = keras.layers.Dense(2)

    def call(self, x, training=None):
        for attention in self.attentions:
            x = x + attention(x, x, use_causal_mask=True, training=training)
        return self.head(x)


@pytest.fixture
def built(monkeypatch):
    """The names of the layers that were traced."""
    names = []
    plain = Checkpointed.build
    monkeypatch.setattr(
        Checkpointed,
        "build",
        lambda self, *rest: names.append(self.__name__) or plain(self, *rest),
    )
    return names


def model_with_weights(*kind):
    """Return a model whose weights all differ, the biases too."""
    keras.utils.set_random_seed(1)
    model = Attentions(*kind)
    model(X)
    for variable in model.trainable_variables:
        variable.assign_add(0.1 * np.random.default_rng(2).normal(size=variable.shape))
    return model


def results(model, state, mode="graph"):
    """Return loss, gradients and all variables after one step from ``state``."""
    for variable, value in zip(model.variables, state):
        variable.assign(value)
    found = loss_and_gradients(model, X, mode=mode)
    return [*found, *(v.numpy() for v in model.variables)]


def compared(model, ours, mode="graph"):
    """Check a step of ``ours`` against the plain model's, from the same weights and seeds."""
    state = [v.numpy() for v in model.variables]
    found, wanted = results(ours, state, mode), results(model, state, mode)
    # Gradients are as large as 1,400.
    assert_all_close(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mode", ["graph", pytest.param("jit", marks=pytest.mark.long)])
def test_layers_that_are_alike_are_traced_once(built, mode):
    model = model_with_weights()
    compared(model, kr.checkpointed(model, layers="attention_*"), mode)
    assert built == ["attention_0"]


def test_losses_of_each_layer_are_its_own():
    model = model_with_weights()
    ours = kr.checkpointed(model, layers="attention_*")

    @tf.function
    def losses(model):
        model(X, training=True)
        return [list(attention.losses) for attention in model.attentions]

    state = [v.numpy() for v in model.variables]
    wanted = losses(model)
    for variable, value in zip(model.variables, state):
        variable.assign(value)
    found = losses(ours)
    assert len({float(each[0]) for each in wanted}) == COUNT
    assert_all_close(tf.nest.flatten(found), tf.nest.flatten(wanted), rtol=1e-5, atol=1e-6)


def with_another_rate(model):
    model.attentions[2]._dropout_layer.rate = 0.25


def with_a_frozen_layer(model):
    model.attentions[2].trainable = False


def with_a_call_of_its_own(model):
    attention = model.attentions[2]
    own = attention.call
    attention.call = lambda *args, **kwargs: 2.0 * own(*args, **kwargs)


@pytest.mark.parametrize(
    "change",
    [with_another_rate, with_a_frozen_layer, with_a_call_of_its_own],
    ids=lambda change: change.__name__,
)
def test_a_layer_that_is_not_alike_is_traced_itself(built, change):
    model = model_with_weights()
    change(model)
    compared(model, kr.checkpointed(model, layers="attention_*"))
    assert built == ["attention_0", "attention_2"]


def test_the_code_of_a_users_class_runs_for_each_layer():
    """It may count, as here, and a plain model runs it once for each layer, too."""
    called = []

    class Counted(keras.layers.MultiHeadAttention):
        def call(self, query, value, key=None, **kwargs):
            called.append(self.name)
            return super().call(query, value, key, **kwargs)

    model = model_with_weights(Counted)
    called.clear()
    results(kr.checkpointed(model, layers="attention_*"), [v.numpy() for v in model.variables])
    assert called == [f"attention_{n}" for n in range(COUNT)]


@pytest.mark.long
def test_the_program_names_each_layer_and_what_is_inside():
    model = model_with_weights()
    ours = kr.checkpointed(model, layers="attention_*")
    ours.compile("sgd", "mse")
    record = profile(ours, tf.TensorSpec((64, LENGTH, WIDTH)), tf.TensorSpec((64, LENGTH, 2)))
    names = {buffer.layer.rpartition("/")[2] for buffer in record.buffers if buffer.layer}
    assert {attention._softmax.name for attention in model.attentions} <= names, names
    sections = {buffer.section for buffer in record.buffers}
    assert {f"attention-{number}" for number in range(COUNT)} <= sections, sections
