"""What every test of scopes on PyTorch asks: equal to the bit, and nothing left behind."""

import gc

import torch

from keras_recompute.keras_backend import torch_scopes
from keras_recompute.seams.torch.saved_tensors import top_hooks


def assert_nothing_is_left():
    gc.collect()
    torch.exp(torch.ones(1, requires_grad=True))  # a backward pass leaves it to the next saving
    assert top_hooks() is None
    assert not torch_scopes._owners


def assert_same(found, wanted):
    for ours, plain in zip(found, wanted, strict=True):
        assert torch.equal(ours, plain)
