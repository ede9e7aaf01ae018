"""State that layers keep outside of Keras's variables: a replay finds it and leaves it."""

import keras
import numpy as np
import pytest
from plain_oracle import every

import keras_recompute as kr

L = keras.layers
X, Y = np.random.default_rng(0).standard_normal((2, 16, 8)).astype("float32")


class Scales(L.Layer):
    """Multiplies by a number that its call changes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.calls = 0

    def call(self, x):
        self.calls += 1
        return x * (1.0 + 0.1 * self.calls)


def network():
    x = inputs = keras.Input((8,))
    for _ in range(4):
        x = Scales()(L.Dense(8, "tanh")(x))
    return keras.Model(inputs, L.Dense(8)(x))


def test_a_number_that_a_call_changes():
    found = []
    for place in (lambda model: model, every(4)):
        keras.utils.set_random_seed(0)
        model = place(network())
        model.compile("sgd", "mse", run_eagerly=True)  # eagerly a call runs at each step
        scales = [layer for layer in model.layers if isinstance(layer, Scales)]
        for layer in scales:
            layer.calls = 0  # the construction of a model calls it too
        model.train_on_batch(X, Y)
        found.append([model.get_weights(), [layer.calls for layer in scales]])
    (plain, plain_calls), (ours, calls) = found
    assert calls == plain_calls
    for value, wanted in zip(ours, plain):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(keras.config.backend() != "torch", reason="modules of PyTorch")
def test_buffers_of_modules_of_pytorch():
    import torch

    running = []
    for place in (None, every(2)):
        keras.utils.set_random_seed(0)
        torch.manual_seed(0)
        x = inputs = keras.Input((8,))
        norms = [
            L.TorchModuleWrapper(torch.nn.BatchNorm1d(8), output_shape=(None, 8)) for _ in range(3)
        ]
        for norm in norms:
            x = norm(L.Dense(8, "tanh")(x))
        model = keras.Model(inputs, L.Dense(8)(x))
        model = place(model) if place else model
        model.compile("sgd", "mse", jit_compile=False)
        losses = [float(model.train_on_batch(X, Y)) for _ in range(3)]
        running.append([losses, *(norm.module.running_mean.tolist() for norm in norms)])
    np.testing.assert_allclose(running[0][0], running[1][0], rtol=1e-6)
    for plain, ours in zip(*(each[1:] for each in running)):
        np.testing.assert_allclose(ours, plain, rtol=1e-6)
    assert isinstance(model, kr.Model)
