"""What could not be loaded is refused when it is saved, and as plain Keras refuses it."""

from __future__ import annotations

import pickle

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import UnsupportedError

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def network():
    return keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8, "tanh") for _ in range(4))])


class TakesAModel(keras.Model):
    """No get_config, as the trainers of keras.io: Keras cannot write its argument down."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def call(self, x, training=None):
        return self.net(x, training=training)


class TakesNothing(keras.Model):
    """No get_config either: Keras saves it, with a name that its constructor does not take."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def call(self, x):
        return self.net(x)


class Functional(keras.Model):
    """A constructor of its own, without get_config."""

    def __init__(self, net):
        inputs = x = keras.Input((8,))
        for layer in net.layers:
            x = layer(x)
        super().__init__(inputs, x)


def message_of(save):
    with pytest.raises(Exception, match=r".") as caught:
        save()
    return caught.type, str(caught.value)


def test_a_model_is_refused_as_the_plain_one(tmp_path):
    plain = TakesAModel(network())
    plain(X)
    ours = kr.checkpointed(plain, layers=keras.layers.Dense)
    for save in (
        lambda model: model.save(tmp_path / "m.keras"),
        pickle.dumps,
        keras.models.clone_model,
    ):
        wanted = message_of(lambda: save(plain))  # noqa: B023
        assert wanted[0] is NotImplementedError
        assert message_of(lambda: save(ours)) == wanted  # noqa: B023
    ours.save_weights(tmp_path / "ours.weights.h5")
    plain.load_weights(tmp_path / "ours.weights.h5")


MODELS = {
    "layers=": (TakesNothing, {"layers": keras.layers.Dense}),
    "every=": (lambda: Functional(network()), {"every": 2}),
    "at=": (lambda: Functional(network()), {"at": "dense_1"}),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_keras_saves_and_cannot_load_is_refused(tmp_path, kind):
    keras.utils.clear_session()
    make, options = MODELS[kind]
    plain = make()
    plain(X)
    plain.save(tmp_path / "plain.keras")
    with pytest.raises(TypeError):
        keras.saving.load_model(
            tmp_path / "plain.keras", custom_objects={type(plain).__name__: type(plain)}
        )
    ours = kr.checkpointed(plain, **options)
    for save in (lambda: ours.save(tmp_path / "ours.keras"), lambda: pickle.dumps(ours)):
        with pytest.raises(
            UnsupportedError,
            match=r"cannot be saved .* Return the arguments of the constructor in get_config",
        ):
            save()
