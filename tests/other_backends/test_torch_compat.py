"""The call styles of other libraries on PyTorch."""

import numpy as np
import torch

import keras_recompute as kr
from keras_recompute.compat import checkpointable, gradient_checkpoint_scope, recompute_grad


def gradients(call):
    x, w = (torch.linspace(0.1, 1, 12, requires_grad=True) for _ in range(2))
    y = call(x, w)
    return y.detach(), *torch.autograd.grad(y.sum(), [x, w])


def function(x, w, power=1):
    return torch.exp(torch.sin(x * w)) ** power


def test_functions_in_the_styles_of_tensorflow():
    wanted = gradients(lambda x, w: function(x, w, power=2))
    again = recompute_grad(function)
    by_argument = checkpointable(function)
    for call in (
        lambda x, w: again(x, w, power=2),
        lambda x, w: by_argument(x, w, power=2),
        lambda x, w: by_argument(x, w, power=2, _checkpoint=True, _watch_vars=[]),
    ):
        for found, plain in zip(gradients(call), wanted):
            np.testing.assert_array_equal(found, plain)
    x, w = torch.ones(4, requires_grad=True), torch.ones(4)
    assert kr.replay_count(lambda x: by_argument(x, w), x) == 0
    assert kr.replay_count(lambda x: by_argument(x, w, _checkpoint=True), x) > 0
    assert kr.replay_count(lambda x: again(x, w), x) > 0


def test_the_scope_of_returnn():
    """The sum is not stored, and its storage is freed before the backward pass."""
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    with gradient_checkpoint_scope():
        x = a + 2 * b
    y = (x * c).sum()
    alive = torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage())
    del x
    assert alive.expired()
    y.backward()
    np.testing.assert_array_equal(c.grad, [3.0, 3.0])
    np.testing.assert_array_equal(b.grad, [2.0, 2.0])
