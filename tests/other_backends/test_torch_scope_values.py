"""Values, gradients and random state with ``recompute_scope`` on PyTorch, to the bit."""

import contextlib

import pytest
import torch
from scope_oracle import assert_nothing_is_left, assert_same
from torch.nn import functional as F

import keras_recompute as kr

torch.set_num_threads(1)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x * x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        _, square = ctx.saved_tensors
        return 3.0 * square * gradient


torch.manual_seed(7)
LINEAR = torch.nn.Linear(6, 6)
NORMED = torch.nn.BatchNorm1d(6)
CONVOLUTION = torch.nn.Sequential(torch.nn.Conv1d(1, 6, 3, padding=1), torch.nn.MaxPool1d(2))
RECURRENT = torch.nn.LSTM(6, 6, batch_first=True)
ATTENTION = torch.nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)
ENCODER = torch.nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True)


def in_place(x):
    y = torch.relu_(x * 1.0)
    y = y.clone()
    y[1:] += torch.sin(x[1:])
    return y.mul_(2.0)


def accumulated(x):
    total = torch.zeros(4, 6)
    for row in range(4):
        total[row] = torch.tanh(x[row])
    return total


def mixed(x):
    with torch.autocast("cpu", torch.bfloat16):
        return torch.tanh(LINEAR(x)).float()


def drawn(x):
    generator = torch.Generator().manual_seed(3)
    mask = torch.empty(4, 6).bernoulli_(0.5, generator=generator)
    return x * mask + torch.rand(4, 6, generator=generator) * x.exp()


INSIDE = {
    "dropout": lambda x: F.dropout(torch.tanh(LINEAR(x)), 0.4),
    "batch norm": lambda x: torch.sin(NORMED(x)),
    "layer norm": lambda x: F.gelu(F.layer_norm(x, (6,))),
    "convolution": lambda x: CONVOLUTION(x[:, None]).reshape(4, 18)[:, :6],
    "lstm": lambda x: RECURRENT(x[:, None].expand(4, 5, 6))[0].sum(1),
    "attention": lambda x: ATTENTION(x[None], x[None], x[None])[0][0],
    "transformer": lambda x: ENCODER(x[None])[0],
    "in place": in_place,
    "rows of zeros": accumulated,
    "views": lambda x: torch.cat([x.T.reshape(6, 4).T[:2], torch.stack(x.chunk(2)[0].unbind())]),
    "indices": lambda x: torch.exp(x)[[0, 0, 3, 2]].masked_fill(x > 1, 0.0),
    "complex": lambda x: torch.fft.ifft(torch.fft.fft(x).conj() * (1 + 2j)).real * x,
    "own function": lambda x: Cube.apply(torch.sin(x)),
    "mixed precision": mixed,
    "generators": drawn,
    "sorted": lambda x: torch.sort(x * x, dim=1)[0].cumprod(1),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(
        lambda x: F.dropout(torch.sin(x).exp(), 0.5), x, use_reentrant=False
    ),
    "numbers": lambda x: x * float(x.detach().max()) * x,
}


def results(inside, scope):
    torch.manual_seed(1)
    NORMED.reset_running_stats()
    x = torch.randn(4, 6, requires_grad=True)
    other = torch.randn(4, 6, requires_grad=True)
    leaves = [x, other, *LINEAR.parameters(), *NORMED.parameters(), *RECURRENT.parameters()]
    leaves += [*CONVOLUTION.parameters(), *ATTENTION.parameters(), *ENCODER.parameters()]
    with scope():
        made = inside(torch.tanh(x))
    # Read behind the scope: as it is, as a view, and by an operation that saves its result.
    loss = (made * other).sum() + torch.exp(made.T[1:]).sum()
    del made
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    state = [NORMED.running_mean, NORMED.running_var, torch.get_rng_state()]
    return [loss, *(g for g in gradients if g is not None), *(s.clone() for s in state)]


@pytest.mark.parametrize("name", INSIDE)
def test_values_gradients_and_random_state_to_the_bit(name):
    found = results(INSIDE[name], kr.recompute_scope)
    assert_same(found, results(INSIDE[name], contextlib.nullcontext))
    assert_nothing_is_left()
