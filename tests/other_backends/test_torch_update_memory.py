"""What updates take on PyTorch, in the backward pass and at the end."""

import numpy as np
import pytest
from test_torch_updates import AT_THE_END, OPTIMIZERS, chain

import keras_recompute as kr
from keras_recompute.keras_backend import torch_updates


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_gradients_of_one_layer_at_a_time_are_alive(optimizer):
    """Eight gradients of 512 x 512, and for Adam three more copies, in a step on four rows."""
    one = 512 * 512 * 4
    held = []
    for every in (None, 2):
        model = chain(width=512, use_bias=False)
        if every:
            model = kr.checkpointed(model, every=every)
        model.compile(optimizer, "mse")
        x = np.zeros((4, 512), "float32")
        record = kr.liveness.profile(model, x, x)
        held.append(record.peak_bytes - record.always_live_bytes)
    plain, ours = held
    assert plain >= (8 if optimizer == "sgd" else 32) * one
    # A gradient, and what the update of one weight makes of it: of Adam three values as large.
    assert ours < (2 if optimizer == "sgd" else 5) * one


@pytest.mark.parametrize("name", sorted(AT_THE_END - {"nadam", "own"}))
def test_updates_that_wait_are_made_for_one_weight_after_the_other(name, monkeypatch):
    """Adam makes three arrays of the size of a weight, and not of all weights together."""
    monkeypatch.setattr(torch_updates, "GROUP_BYTES", 1)
    kernel = 64 * 64 * 4
    weights = 8 * (kernel + 64 * 4)
    x = np.ones((1, 64), "float32")
    peaks = []
    for every in (None, 2):
        model = kr.checkpointed(chain(), every=every) if every else chain()
        model.compile(OPTIMIZERS[name](), "mse", jit_compile=False)
        peaks.append(kr.liveness.profile(model, x, x).peak_bytes)
    assert peaks[0] - peaks[1] == 3 * (weights - kernel)
