"""PyTorch, eager, without reentry, as its documentation recommends.

``nn.LSTM`` and ``nn.GRU`` stand under ``torch.utils.checkpoint``, sections of blocks under its
``checkpoint_sequential``, which does not replay the last one. Nothing is random here, so the state
of random numbers is not kept. Sequences are time-major, the layers' own layout, and images
channels-last. PyTorch takes all cores by itself.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from workloads import (
    CONVOLVE,
    RATE,
    WEIGHTS_BEFORE_BLOCKS,
    WEIGHTS_PER_BLOCK,
    Workload,
    data,
    weights,
)

from . import DeviceMemory, Peer, torch_networks

replayed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer."""
    del name
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False  # on a GPU, all peers compute in float32
    x, y = (torch.from_numpy(array).to(device) for array in data(workload))
    if workload.is_recurrent:
        x, y = x.transpose(0, 1).contiguous(), y.transpose(0, 1).contiguous()
    if workload.kind in CONVOLVE or workload.patch:
        x, y = _channels_last(x), _channels_last(y)
    model = (_Recurrent if workload.is_recurrent else _Sections)(workload, checkpoints).to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)

    def run() -> tuple[float, float]:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        norm = torch.sqrt(
            sum((p.grad * p.grad).sum() for p in model.parameters() if p.grad is not None)
        )
        optimizer.step()
        return loss.item(), norm.item()

    return Peer(run, lambda: None, device_memory())


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return images in PyTorch's order of dimensions, in the layout that its convolutions are
    fastest in.
    """
    return x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def device_memory() -> DeviceMemory | None:
    """Return the allocator of the first GPU, if there is one."""
    if not torch.cuda.is_available():
        return None
    return DeviceMemory(
        torch.cuda.memory_allocated,
        torch.cuda.max_memory_allocated,
        torch.cuda.reset_peak_memory_stats,
    )


class _Recurrent(nn.Module):
    def __init__(self, workload, checkpoints):
        super().__init__()
        kernel, recurrent, bias, dense, dense_bias = (
            torch.from_numpy(array) for array in weights(workload)
        )
        layer = {"lstm": nn.LSTM, "gru": nn.GRU}[workload.kind]
        self.layer = layer(workload.features, workload.units)
        self.dense = nn.Linear(workload.units, 1)
        order = (
            [0, 1, 2, 3] if workload.kind == "lstm" else [1, 0, 2]
        )  # Keras's GRU has the update gate first

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


class _Sections(nn.Module):
    def __init__(self, workload, checkpoints):
        super().__init__()
        self.parts = nn.ModuleList(
            (torch_networks.sections if workload.network else _stack)(workload, checkpoints)
        )

    def forward(self, x):
        # As many segments as parts: each is one, and the last is not replayed.
        return checkpoint_sequential(
            self.parts, len(self.parts), x, use_reentrant=False, preserve_rng_state=False
        )


def _stack(workload: Workload, checkpoints: int) -> list[nn.Module]:
    """Return the sections of a stack of blocks."""
    arrays, n, before = (
        weights(workload),
        WEIGHTS_PER_BLOCK[workload.kind],
        WEIGHTS_BEFORE_BLOCKS.get(workload.kind, 0),
    )
    end = before + n * workload.blocks
    block = {"dense": _Dense, "residual": _Residual}.get(workload.kind, _Block)
    blocks = [block(workload, arrays[i : i + n]) for i in range(before, end, n)]
    parts = [blocks[begin:end] for begin, end in workload.sections(checkpoints)]
    if before:
        parts[0].insert(0, _Patches(workload, arrays[:before]))
        parts[-1].append(_Classes(workload, arrays[end:]))
    return [nn.Sequential(*part) for part in parts]


class _Patches(nn.Conv2d):
    def __init__(self, workload, arrays):
        super().__init__(3, workload.features, workload.patch, workload.patch, bias=False)
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(arrays[0]).permute(3, 2, 0, 1))
        self.positions = nn.Parameter(torch.from_numpy(arrays[1]))
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        return super().forward(x).flatten(2).transpose(1, 2) + self.positions


class _Classes(nn.Module):
    def __init__(self, workload, arrays):
        super().__init__()
        self.norm, self.dense = (
            nn.LayerNorm(workload.features, eps=1e-3),
            nn.Linear(workload.features, workload.classes),
        )
        with torch.no_grad():
            self.dense.weight.copy_(torch.from_numpy(arrays[2]).T)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x):
        return self.dense(self.norm(x).mean(1))


class _Block(nn.Module):
    """The usual block, with PyTorch's own fused attention."""

    def __init__(self, workload, arrays):
        super().__init__()
        width, self.heads, self.is_causal = (
            workload.features,
            workload.heads,
            workload.kind == "decoder",
        )
        self.first, self.second = nn.LayerNorm(width, eps=1e-3), nn.LayerNorm(width, eps=1e-3)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, workload.units), nn.Linear(workload.units, width)
        pairs = [
            self.first,
            self.query,
            self.key,
            self.value,
            self.out,
            self.second,
            self.up,
            self.down,
        ]
        with torch.no_grad():
            for layer, weight, bias in zip(pairs, arrays[::2], arrays[1::2]):
                matrix = torch.from_numpy(weight)
                rows = width if layer is not self.down else workload.units
                layer.weight.copy_(
                    matrix if isinstance(layer, nn.LayerNorm) else matrix.reshape(rows, -1).T
                )
                layer.bias.copy_(torch.from_numpy(bias).reshape(-1))

    def forward(self, x):
        batch, length, width = x.shape
        y = self.first(x)
        q, k, v = (
            f(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
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
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width, eps=1e-3) for _ in range(2))
        with torch.no_grad():
            for convolution, kernel in zip(self.convolutions, arrays[::3]):
                convolution.weight.copy_(torch.from_numpy(kernel).permute(3, 2, 0, 1))
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        y = nn.functional.relu(self.norms[0](self.convolutions[0](x)))
        return nn.functional.relu(x + self.norms[1](self.convolutions[1](y)))
