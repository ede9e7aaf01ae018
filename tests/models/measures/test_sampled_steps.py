"""``checkpointed(layers=)`` of models that were never called, and with ``sample=``: built, and
compared, as fit does.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, RecomputeWarning

from ..trainers import ALL, FEATURES, network

X = np.random.default_rng(0).normal(size=(256, FEATURES)).astype(np.float32)


class Lazy(keras.layers.Layer):
    """Makes a layer when it is first called, as Keras's own composite layers make weights."""

    def build(self, shape):
        self.up, self.down = keras.layers.Dense(4 * FEATURES, "gelu"), keras.layers.Dense(FEATURES)
        self.up.build(shape)
        self.down.build((*shape[:-1], 4 * FEATURES))

    def call(self, x):
        return x + self.down(self.up(x))


class Trainer(keras.Model):
    """Has no ``call``, and its layers have no weights before its first step."""

    def __init__(self):
        super().__init__()
        self.blocks = [Lazy(name=f"block_{n}") for n in range(3)]
        self.head = keras.layers.Dense(1)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            x = data
            for block in self.blocks:
                x = block(x)
            loss = tf.reduce_mean(tf.square(self.head(x)))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def compiled(model):
    model.compile("sgd", jit_compile=False)
    return model


@pytest.mark.long
def test_a_trainer_of_built_networks_needs_no_call():
    """All has its weights, so nothing is asked for; as fit, it is never called."""
    found = []
    for change in (lambda t: t, lambda t: kr.checkpointed(t, layers=keras.layers.Dense)):
        trainer = change(ALL["VAE"](lambda net: net))
        found.append(compiled(trainer).fit(X[:4], verbose=0).history["objective"])
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_a_trainer_without_weights_says_what_to_do():
    with pytest.raises(
        InvalidArgumentError,
        match=r"'trainer.*' is not built: .* Compile it as for fit, and give sample=",
    ):
        kr.checkpointed(Trainer(), layers="block_*")
    with pytest.raises(InvalidArgumentError, match=r"not compiled, .*\.compile\("):
        kr.checkpointed(Trainer(), layers="block_*", sample=X)


def test_a_class_that_is_not_compiled_is_built_on_a_sample():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [Lazy(name=f"block_{n}") for n in range(3)]

        def call(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    ours = kr.checkpointed(Net(), layers="block_*", sample=X)
    assert len(ours.recomputed_layers) == 3
    assert len(ours.trainable_variables) == 3 * 4
    assert not ours.compiled


@pytest.mark.long
def test_a_trainer_is_built_on_a_sample_and_compared():
    trainer = compiled(Trainer())
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        ours = kr.checkpointed(trainer, layers=Lazy, sample=X)
    assert len(ours.recomputed_layers) == 3
    assert len(trainer.trainable_variables) == len(ours.trainable_variables) == 3 * 4 + 2
    assert int(trainer.optimizer.iterations) == 0
    compiled(ours).fit(X, verbose=0)


def test_a_sample_shows_that_nothing_is_saved():
    """One row: activations of half a KiB beside weights of 64 KiB."""
    model = keras.Sequential([keras.Input((128,)), *(keras.layers.Dense(128) for _ in range(3))])
    with pytest.warns(
        RecomputeWarning, match=r"takes \S+ \S+ with recomputation and \S+ \S+ without"
    ) as caught:
        kr.checkpointed(model, layers=keras.layers.Dense, sample=np.ones((1, 128)))
    assert len(caught) == 1, "the measured figures say it, and nothing else"


def test_a_sample_shows_that_hardly_anything_is_saved():
    """XLA computes a normalisation again anyway, where that costs little."""
    inputs = x = keras.Input((16, 64))
    for _ in range(4):
        y = keras.layers.Dense(256, "tanh")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(64)(y)])
    with pytest.warns(RecomputeWarning, match="recomputing 4 layers .* saves hardly any memory"):
        kr.checkpointed(
            keras.Model(inputs, x),
            layers=keras.layers.LayerNormalization,
            sample=np.ones((64, 16, 64)),
        )


def test_layers_that_save_nothing_say_so_once():
    model = keras.Sequential(
        [keras.Input((FEATURES,)), *(keras.layers.Dense(FEATURES) for _ in range(3))]
    )
    ours = kr.checkpointed(model, layers=keras.layers.Dense)
    ours.compile("sgd", "mse", jit_compile=False)
    with pytest.warns(RecomputeWarning, match="saves no memory: none of the 3 layers") as caught:
        ours.fit(X, X, verbose=0)
    assert len(caught) == 1


@pytest.mark.long
def test_a_layer_that_saves_nothing_is_no_matter_beside_others():
    model = network(seed=0)  # all layers but the last one keep something
    ours = kr.checkpointed(model, layers=keras.layers.Dense)
    ours.compile("sgd", "mse", jit_compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        ours.fit(X, X, verbose=0)


@pytest.mark.long
def test_a_frozen_model_takes_checkpoints():
    """Its gradients by its inputs are asked for, as in style transfer."""
    model = network(seed=0)
    model.trainable = False
    x = tf.constant(X[:4])
    found = []
    for each in (
        model,
        kr.checkpointed(model, every=2),
        kr.checkpointed(model, layers=keras.layers.Dense),
    ):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = each(x, training=False)
        found.append(tape.gradient(y, x).numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-4)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_one_layer_has_no_place_for_a_checkpoint(every):
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs), name="one")
    with pytest.raises(
        InvalidArgumentError, match=r"'one', which has 1 layer. .* Train the plain model"
    ) as raised:
        kr.checkpointed(model, every=every)
    assert "smaller number" not in str(raised.value)


def test_every_of_a_trainer_names_what_it_trains():
    with pytest.raises(
        InvalidArgumentError, match=r"that trains 'functional.*', 'functional.*'\. "
    ):
        kr.checkpointed(ALL["VAE"](lambda net: net), every=2)
