"""What checkpoints save on PyTorch: the bytes that the forward pass hands to the backward pass."""

import keras
import numpy as np
import torch
from plain_oracle import every

from keras_recompute.keras_backend.torch_remat import recomputed

L = keras.layers


def saved_bytes(work):
    """Return the size of all storages that ``work()`` saves for its gradient, parameters apart."""
    sizes = {}

    def pack(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        work()
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
        found.append(saved_bytes(lambda model=model: model.train_on_batch(given, wanted)))
    assert found[1] < 0.5 * found[0], f"{found[1]} bytes, and {found[0]} without checkpoints"


def test_random_numbers_of_pytorch_are_those_of_the_forward_pass():
    def section(x):
        return [torch.nn.functional.dropout(x * x, 0.5)]

    x = torch.ones(1000, requires_grad=True)
    (made,) = recomputed(section, name="section")(x)
    made.sum().backward()
    kept = made.detach() > 0
    np.testing.assert_array_equal(x.grad.numpy(), np.where(kept, 4.0, 0.0))  # 2 x / 0.5
