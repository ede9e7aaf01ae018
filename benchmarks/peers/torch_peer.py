"""PyTorch, eager: ``nn.LSTM`` and ``nn.GRU``, sections and blocks under ``torch.utils.checkpoint``, without reentry, as its
documentation recommends. Nothing is random here, so the state of random numbers is not kept. Sequences are time-major, the
layers' own layout. PyTorch takes all cores by itself.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from workloads import RATE, WEIGHTS_PER_BLOCK, Workload, data, weights

from . import DeviceMemory, Peer

replayed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer."""
    del name
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False  # on a GPU, all peers compute in float32
    x, y = (torch.from_numpy(array).to(device) for array in data(workload))
    if workload.is_recurrent:
        x, y = x.transpose(0, 1).contiguous(), y.transpose(0, 1).contiguous()
    if workload.kind == "residual":  # PyTorch's own order of dimensions, in the layout that its convolutions are fastest in
        x, y = (array.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last) for array in (x, y))
    model = (_Recurrent if workload.is_recurrent else _Stack)(workload, checkpoints).to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)

    def run() -> tuple[float, float]:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        norm = torch.sqrt(sum((p.grad * p.grad).sum() for p in model.parameters() if p.grad is not None))
        optimizer.step()
        return loss.item(), norm.item()

    return Peer(run, lambda: None, device_memory())


def device_memory() -> DeviceMemory | None:
    """Return the allocator of the first GPU, if there is one."""
    if not torch.cuda.is_available():
        return None
    return DeviceMemory(torch.cuda.memory_allocated, torch.cuda.max_memory_allocated, torch.cuda.reset_peak_memory_stats)


class _Recurrent(nn.Module):
    def __init__(self, workload, checkpoints):
        super().__init__()
        kernel, recurrent, bias, dense, dense_bias = (torch.from_numpy(array) for array in weights(workload))
        layer = {"lstm": nn.LSTM, "gru": nn.GRU}[workload.kind]
        self.layer = layer(workload.features, workload.units)
        self.dense = nn.Linear(workload.units, 1)
        order = [0, 1, 2, 3] if workload.kind == "lstm" else [1, 0, 2]  # Keras's GRU has the update gate first

        def gates(array):
            parts = array.split(workload.units, dim=-1)
            return torch.cat([parts[i] for i in order], dim=-1)

        two = bias if bias.ndim == 2 else torch.stack([bias, torch.zeros_like(bias)])
        with torch.no_grad():
            self.layer.weight_ih_l0.copy_(gates(kernel).T)
            self.layer.weight_hh_l0.copy_(gates(recurrent).T)
            self.layer.bias_ih_l0.copy_(gates(two[0]))
            self.layer.bias_hh_l0.copy_(gates(two[1]))
            self.dense.weight.copy_(dense.T)
            self.dense.bias.copy_(dense_bias)
        # Keras's LSTM has one bias.
        self.layer.bias_hh_l0.requires_grad_(workload.kind == "gru")
        self.sections = workload.sections(checkpoints) if checkpoints else None

    def forward(self, x):
        if self.sections is None:
            return self.dense(self.layer(x)[0])
        state, outputs = None, []
        for begin, end in self.sections:
            y, state = replayed(self.layer, x[begin:end], state)
            outputs.append(y)
        return self.dense(torch.cat(outputs))


class _Stack(nn.Module):
    def __init__(self, workload, checkpoints):
        super().__init__()
        arrays, n = weights(workload), WEIGHTS_PER_BLOCK[workload.kind]
        block = {"transformer": _Block, "dense": _Dense, "residual": _Residual}[workload.kind]
        self.blocks = nn.ModuleList(block(workload, arrays[i * n : (i + 1) * n]) for i in range(workload.blocks))
        self.sections = workload.sections(checkpoints) if checkpoints else None

    def forward(self, x):
        if self.sections is None:
            return self._run(x, 0, len(self.blocks))
        for begin, end in self.sections:
            x = replayed(self._run, x, begin, end)
        return x

    def _run(self, x, begin, end):
        for block in self.blocks[begin:end]:
            x = block(x)
        return x


class _Block(nn.Module):
    """The usual block, with PyTorch's own fused attention."""

    def __init__(self, workload, arrays):
        super().__init__()
        width, self.heads = workload.features, workload.heads
        self.first, self.second = nn.LayerNorm(width, eps=1e-3), nn.LayerNorm(width, eps=1e-3)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, workload.units), nn.Linear(workload.units, width)
        pairs = [self.first, self.query, self.key, self.value, self.out, self.second, self.up, self.down]
        with torch.no_grad():
            for layer, weight, bias in zip(pairs, arrays[::2], arrays[1::2]):
                matrix = torch.from_numpy(weight)
                rows = width if layer is not self.down else workload.units
                layer.weight.copy_(matrix if isinstance(layer, nn.LayerNorm) else matrix.reshape(rows, -1).T)
                layer.bias.copy_(torch.from_numpy(bias).reshape(-1))

    def forward(self, x):
        batch, length, width = x.shape
        y = self.first(x)
        q, k, v = (f(y).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class _Dense(nn.Linear):
    def __init__(self, workload, arrays):
        super().__init__(workload.features, workload.features)
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(arrays[0]).T)
            self.bias.copy_(torch.from_numpy(arrays[1]))

    def forward(self, x):
        return nn.functional.relu(super().forward(x))


class _Residual(nn.Module):
    def __init__(self, workload, arrays):
        super().__init__()
        width = workload.features
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width, eps=1e-3) for _ in range(2))
        with torch.no_grad():
            for convolution, kernel in zip(self.convolutions, arrays[::3]):
                convolution.weight.copy_(torch.from_numpy(kernel).permute(3, 2, 0, 1))
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        y = nn.functional.relu(self.norms[0](self.convolutions[0](x)))
        return nn.functional.relu(x + self.norms[1](self.convolutions[1](y)))
