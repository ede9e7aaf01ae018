"""The networks of ``keras.applications`` in PyTorch, from their descriptions, channels last."""

from __future__ import annotations

import torch
from convolutional import Block, Convolution
from torch import nn
from workloads import Workload, named_weights


def sections(workload: Workload, checkpoints: int) -> list[nn.Module]:
    """Return the modules, one after the other, that are the network."""
    network, weights = (
        workload.network,
        {name: torch.from_numpy(a) for name, a in named_weights(workload).items()},
    )

    def blocks(some: tuple[Block, ...]) -> list[nn.Module]:
        return [_Block(block, weights, network.epsilon) for block in some]

    parts = [blocks(network.blocks[begin:end]) for begin, end in workload.sections(checkpoints)]
    parts[0] = [
        *blocks(network.stem),
        *([nn.MaxPool2d(3, 2, 1)] if network.pools else []),
        *parts[0],
    ]
    last = nn.Linear(network.features, workload.classes)
    with torch.no_grad():
        last.weight.copy_(weights["predictions/kernel"].T)
    nn.init.zeros_(last.bias)
    parts[-1] += [*blocks(network.top), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last]
    return [nn.Sequential(*part).to(memory_format=torch.channels_last) for part in parts]


class _Block(nn.Module):
    def __init__(self, block: Block, weights: dict[str, torch.Tensor], epsilon: float) -> None:
        super().__init__()
        self.path = nn.Sequential(*(_convolution(one, weights, epsilon) for one in block.path))
        shortcut = block.shortcut
        self.shortcut = (
            None
            if shortcut is None
            else nn.Sequential(*(_convolution(one, weights, epsilon) for one in shortcut))
        )
        self.activation = _activation(block.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.path(x)
        return self.activation(y if self.shortcut is None else y + self.shortcut(x))


def _convolution(
    described: Convolution, weights: dict[str, torch.Tensor], epsilon: float
) -> nn.Sequential:
    before, after = described.padding
    layer = nn.Conv2d(
        described.inputs,
        described.filters,
        described.size,
        described.stride,
        padding=before if before == after else 0,
        groups=described.inputs if described.is_depthwise else 1,
        bias=f"{described.name}/bias" in weights,
    )
    norm = nn.BatchNorm2d(described.filters, eps=epsilon)
    with torch.no_grad():
        norm.weight.copy_(weights[f"{described.norm}/gamma"])
        order = (2, 3, 0, 1) if described.is_depthwise else (3, 2, 0, 1)
        layer.weight.copy_(weights[f"{described.name}/kernel"].permute(order))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    pad = [] if before == after else [nn.ZeroPad2d((before, after, before, after))]
    return nn.Sequential(*pad, layer, norm, _activation(described.activation))


def _activation(name: str | None) -> nn.Module:
    return {"relu": nn.ReLU, "relu6": nn.ReLU6, None: nn.Identity}[name]()
