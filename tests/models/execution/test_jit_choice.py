"""Models that ``compile`` without ``jit_compile`` trains with jit, and that they train the same."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.models.execution import jit_choice

K = keras.layers
LENGTH, SIZE = 6, 4


class OwnLayer(K.Layer):
    def call(self, x):
        return x + 1.0


class OwnDense(K.Dense):
    pass


class OwnStep(kr.Model):
    def train_step(self, data):
        return super().train_step(data)


def own_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def own_activation(x):
    return keras.ops.tanh(x)


def attention(x):
    return K.MultiHeadAttention(2, 2)(x, x)


def lstm(x):
    return kr.LSTM(SIZE, return_sequences=True)(x)


FASTER = {
    "lstm": lstm,
    "gru": kr.GRU(SIZE, return_sequences=True),
    "attention": attention,
    "our attention": lambda x: kr.MultiHeadAttention(2, 2)(x, x),
    "grouped attention": lambda x: K.GroupQueryAttention(2, 2, 1)(x, x),
    "bidirectional": K.Bidirectional(kr.LSTM(SIZE, return_sequences=True)),
    "block": lambda x: x + K.Dense(SIZE, "gelu")(K.LayerNormalization()(attention(x))),
    "patches": lambda x: attention(K.Conv1D(SIZE, 2, strides=2)(x)),
    "nested": lambda x: keras.Sequential([keras.Input((LENGTH, SIZE)), K.Dense(SIZE)])(lstm(x)),
}
# Networks that are not known to be faster, or would not do the same.
OTHERS = {
    "dense": K.Dense(SIZE),
    "keras lstm": K.LSTM(SIZE, return_sequences=True),
    "convolution": lambda x: lstm(K.Conv1D(SIZE, 3, padding="same")(x)),
    "convolution with a stride": lambda x: lstm(K.Conv1D(SIZE, 3, strides=2)(x)),
    "own layer": lambda x: OwnLayer()(lstm(x)),
    "layer of a derived class": lambda x: OwnDense(SIZE)(lstm(x)),
    "own activation": lambda x: K.Dense(SIZE, own_activation)(lstm(x)),
    "lambda": lambda x: K.Lambda(lambda y: y + 1.0)(lstm(x)),
    "operation": lambda x: lstm(keras.ops.take(x, [0, 2, 1, 4, 3, 5], axis=1)),
    "nested convolution": lambda x: keras.Sequential(
        [keras.Input((LENGTH, SIZE)), K.Conv1D(SIZE, 3)]
    )(lstm(x)),
}


def network(middle, kind=kr.Model, shape=(LENGTH, SIZE)):
    x = keras.Input(shape)
    return kind(x, K.Dense(1)(middle(x)))


@pytest.mark.parametrize("name", FASTER)
def test_networks_that_are_faster_train_with_jit(name):
    model = network(FASTER[name])
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.MeanSquaredError()])
    assert model.jit_compile is True


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_compiled_as_keras_does(name):
    model = network(OTHERS[name])
    model.compile("sgd", "mse")
    assert model.jit_compile is False


def test_an_embedding_still_refuses_what_it_has_no_row_for():
    x = keras.Input((LENGTH,), dtype="int32")
    model = kr.Model(x, K.Dense(1)(attention(K.Embedding(3, SIZE)(x))))
    model.compile("sgd", "mse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        model.train_on_batch(np.full((2, LENGTH), 7), np.zeros((2, LENGTH, 1)))


def test_lengths_that_are_unknown_are_not_compiled_one_by_one():
    model = network(attention, shape=(None, SIZE))
    model.compile("sgd", "mse")
    assert model.jit_compile is False


@pytest.mark.parametrize(
    "options",
    [
        {"jit_compile": False},
        {"run_eagerly": True},
        {"loss": own_loss},
        {"metrics": [own_loss]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_compile_is_given_is_left(options):
    model = network(lstm)
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    assert model.jit_compile is False


def test_a_choice_by_position_is_left():
    model = network(lstm)
    model.compile("sgd", "mse", None, None, None, False, 1, False)
    assert model.jit_compile is False


def test_a_training_step_of_ones_own_is_left():
    model = network(lstm, OwnStep)
    model.compile("sgd", "mse")
    assert model.jit_compile is False


def test_a_class_whose_compile_is_its_own_gets_its_arguments():
    class Own(keras.Model):
        def compile(self, rate):
            super().compile(keras.optimizers.SGD(rate), "mse")

    model = kr.checkpointed(network(lstm, Own), every=1)
    model.compile(0.25)
    assert (float(model.optimizer.learning_rate), model.jit_compile) == (0.25, True)


def test_a_strategy_is_left():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = network(lstm)
        model.compile("sgd", "mse")
    assert model.jit_compile is False


def test_a_layer_that_keras_does_not_compile_is_left():
    model = network(lstm)
    model.layers[1].supports_jit = False
    model.compile("sgd", "mse")
    assert model.jit_compile is False


def test_it_is_said_once(caplog):
    jit_choice._say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "keras_recompute"):
        for _ in range(2):
            network(lstm).compile("sgd", "mse")
    (said,) = [record.getMessage() for record in caplog.records]
    assert "train with jit" in said
    assert "jit_compile=False" in said


@pytest.mark.parametrize(
    ("middle", "options"),
    [(K.Dense(SIZE), {}), (lstm, {"jit_compile": True}), (lstm, {"jit_compile": False})],
    ids=["dense", "asked for", "refused"],
)
def test_nothing_is_said_where_nothing_is_chosen(middle, options, caplog):
    jit_choice._say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "keras_recompute"):
        network(middle).compile("sgd", "mse", **options)
    assert not caplog.records


def test_the_choice_is_saved(tmp_path):
    model = network(lstm)
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").jit_compile is True


@pytest.mark.parametrize(
    "name", ["lstm", pytest.param("block", marks=pytest.mark.long(every_case=True))]
)
def test_it_trains_as_keras_does(name):
    plain = network(FASTER[name], keras.Model)
    model = kr.checkpointed(keras.models.clone_model(plain), every=1)
    model.set_weights(plain.get_weights())
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, LENGTH, SIZE)), rng.normal(size=(4, LENGTH, 1))
    losses = []
    for each in (plain, model):
        each.compile(keras.optimizers.SGD(0.1), "mse")
        history = each.fit(x, y, batch_size=2, shuffle=False, epochs=2, verbose=0)
        losses.append(history.history["loss"])
    assert (plain.jit_compile, model.jit_compile) == (False, True)
    expected, found = losses
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for ours, theirs in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
