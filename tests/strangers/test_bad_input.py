"""Programs that fail in plain Keras too: they fail alike, and leave nothing half wrapped."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr

from .program import stack

L = keras.layers
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


class Trainer(keras.Model):
    """Raises in its first step, or later."""

    def __init__(self):
        super().__init__()
        self.network = stack(6, depth=3)
        self.fails = True

    def train_step(self, data):
        with tf.GradientTape() as tape:
            outputs = self.network(data, training=True)
            if self.fails:
                raise ValueError("the data is odd")
            loss = tf.reduce_mean(outputs**2)
        weights = self.network.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"objective": loss}


def trainer():
    keras.utils.set_random_seed(1)
    made = Trainer()
    made.compile("sgd", jit_compile=False)
    return made


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"sample": X}, marks=pytest.mark.long)], ids=["alone", "sample"]
)
def test_a_trainer_that_raises_in_its_first_step_can_be_trained_afterwards(options):
    plain, base = trainer(), trainer()
    held = [dict(vars(layer)) for layer in base.network.layers]

    def first_step():
        ours = kr.checkpointed(base, layers=L.Dense, **options)
        ours.compile("sgd", jit_compile=False)
        ours.fit(X, verbose=0)

    with pytest.raises(ValueError, match="the data is odd"):
        first_step()
    assert [vars(layer).keys() for layer in base.network.layers] == [each.keys() for each in held]
    assert all("call" not in vars(layer) for layer in base.network.layers)

    plain.fails = base.fails = False
    ours = kr.checkpointed(base, layers=L.Dense, **options)
    ours.compile("sgd", jit_compile=False)
    losses = [each.fit(X, epochs=2, verbose=0).history["objective"] for each in (ours, plain)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("loss", [{"a": None, "b": None}, None], ids=["each", "none given"])
@pytest.mark.parametrize("wrap", [lambda m: kr.checkpointed(m, every=2), kr.checkpoint])
def test_a_loss_that_is_none_everywhere_is_refused_as_by_the_plain_model(wrap, loss):
    def message(wrap):
        trunk = stack(6, depth=4)
        heads = {name: L.Dense(1, name=name)(trunk.output) for name in "ab"}
        model = wrap(keras.Model(trunk.input, heads))
        model.compile("adam", loss)
        before = [weight.numpy() for weight in model.weights]
        with pytest.raises(ValueError, match=r"[Ll]oss|structures") as raised:
            model.fit(X, dict.fromkeys("ab", X[:, :1]), verbose=0)
        for weight, value in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(weight, value)
        return str(raised.value)

    assert message(wrap) == message(lambda model: model)
