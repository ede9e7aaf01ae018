"""The record of cuDNN's recurrent kernels, which need no GPU where nothing runs."""

import os

import pytest

if os.environ.get("KERAS_BACKEND") != "torch":
    pytest.skip("PyTorch alone", allow_module_level=True)

import torch

import keras_recompute as kr
from keras_recompute.seams.torch.cudnn import replacement

LSTM, GRU = 2, 3
GATES = {LSTM: 4, GRU: 3}
# What an H200 kept, in bytes: kind, type, batch, steps, units, features.
KEPT = [
    (LSTM, torch.float32, 64, 1024, 512, 256, 671_088_896),
    (LSTM, torch.float32, 3, 6, 4, 5, 1_696),
    (LSTM, torch.bfloat16, 3, 6, 4, 5, 992),
    (GRU, torch.float32, 8, 101, 64, 32, 1_241_344),
    (GRU, torch.float16, 3, 6, 4, 5, 1_120),
]


@pytest.mark.parametrize(("kind", "dtype", "batch", "steps", "units", "features", "kept"), KEPT)
def test_what_is_kept_is_what_a_gpu_kept(kind, dtype, batch, steps, units, features, kept):
    def spec(*shape, weight=True):
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=weight)

    rows = GATES[kind] * units
    weights = [spec(rows, features), spec(rows, units), spec(rows), spec(rows)]
    state = spec(1, batch, units, weight=False)

    def step(x, state, *weights):
        cell = state if kind == LSTM else None
        tail = kind, units, 0, 1, True, 0.0, True, False, [], None
        outputs = torch._cudnn_rnn(x, list(weights), 4, None, state, cell, *tail)[0]
        outputs.sum().backward()

    program = kr.liveness.profile(step, spec(batch, steps, features), state, *weights)
    made = [b.size_bytes for b in program.buffers if b.name.startswith("_cudnn_rnn.")]
    copied = sum(weight.nelement() for weight in weights) * dtype.itemsize
    assert kept in made
    assert copied in made
    assert batch * steps * units * dtype.itemsize in made
    gradients = [b.size_bytes for b in program.buffers if "_cudnn_rnn_backward" in b.name]
    sizes = [weight.nbytes for weight in weights]
    assert sorted(gradients) == sorted([batch * steps * features * dtype.itemsize, *sizes])


def test_other_operations_are_as_they_are():
    assert replacement(torch.ops.aten.mm.default) is None
