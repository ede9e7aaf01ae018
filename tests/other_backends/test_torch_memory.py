"""What checkpoints save on PyTorch: the bytes that the forward pass hands to the backward pass."""

import keras
import numpy as np
import torch
from plain_oracle import every

from keras_recompute.keras_backend.torch_remat import recomputed

L = keras.layers


def saved_bytes(model, work):
    """Return the size of all storages that ``work()`` saves for its gradient, weights apart.

    Those of the weights that ``model`` has then.
    """
    sizes, kept = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        kept.append(storage)  # no other one comes in its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        work()
    for variable in model.variables:
        sizes.pop(variable.value.untyped_storage().data_ptr(), None)
    return sum(sizes.values())


def test_checkpoints_save_less_than_half():
    x = inputs = keras.Input((64,))
    for _ in range(12):
        x = L.Dropout(0.2)(L.BatchNormalization()(L.Dense(256, "gelu")(x)))
    plain = keras.Model(inputs, L.Dense(1)(x))
    ours = every(9)(plain)
    given, wanted = np.ones((512, 64), "float32"), np.ones((512, 1), "float32")
    found = []
    for model in (plain, ours):
        model.compile("sgd", "mse", jit_compile=False)
        found.append(saved_bytes(model, lambda m=model: m.train_on_batch(given, wanted)))
    assert found[1] < 0.5 * found[0], f"{found[1]} bytes, and {found[0]} without checkpoints"


def test_random_numbers_of_pytorch_are_those_of_the_forward_pass():
    def section(x):
        return [torch.nn.functional.dropout(x * x, 0.5)]

    x = torch.ones(1000, requires_grad=True)
    (made,) = recomputed(section, name="section")(x)
    made.sum().backward()
    kept = made.detach() > 0
    np.testing.assert_array_equal(x.grad.numpy(), np.where(kept, 4.0, 0.0))  # 2 x / 0.5


def test_frozen_weights_are_not_copied_and_large_state_is_kept():
    class Counts(L.Layer):
        def build(self, _):
            self.state = self.add_weight(shape=(300, 300), initializer="ones", trainable=False)

        def call(self, x):
            self.state.assign(2.0 * self.state)
            return keras.ops.tanh(x @ self.state / 300.0)

    def build():
        x = inputs = keras.Input((300,))
        for _ in range(3):
            x = Counts()(L.Dense(300, "tanh", trainable=False)(L.Dense(300)(x)))
        return keras.Model(inputs, L.Dense(1)(x))

    x, y = np.ones((4, 300), "float32") / 300, np.ones((4, 1), "float32")
    found = []
    for place in (lambda model: model, every(3)):
        keras.utils.set_random_seed(0)
        model = place(build())
        model.compile("sgd", "mse", jit_compile=False)
        losses = []
        saved = saved_bytes(
            model, lambda m=model, kept=losses: kept.append(float(m.train_on_batch(x, y)))
        )
        losses += [float(model.train_on_batch(x, y)) for _ in range(2)]
        found.append((saved, losses, model.get_weights()))
    (_, plain_losses, plain), (saved, losses, weights) = found
    assert losses == plain_losses
    for ours, wanted in zip(weights, plain):
        np.testing.assert_array_equal(ours, wanted)
    # Two states, each as it was before its section changed it, and no frozen weight.
    assert saved < 2.5 * 300 * 300 * 4
