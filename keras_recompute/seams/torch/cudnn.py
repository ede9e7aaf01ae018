"""What cuDNN's recurrent kernels make, for a record of a step that does not run.

PyTorch knows the shapes of their outputs, but not the sizes of what they keep for the backward
pass, and nothing of the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# What cuDNN keeps for the backward pass, as it was on an H200 for 16 shapes in three types: values
# for each timestep, sample and unit, by cuDNN's number of the kind of layer, and some bytes.
_LSTM, _GRU = 2, 3
_KEPT = {_LSTM: 5, _GRU: 6}
_ROUNDED, _HEADER = 32, 256

Tensors = Sequence[Any]


def replacement(operation: Any) -> Callable[..., Any] | None:
    """Return what stands in a record for an operation of cuDNN's recurrent layers, else None."""
    return _REPLACEMENTS.get(operation)


def _forward(*args: Any) -> tuple[Any, ...]:
    x, weights, _, buffer, _, _, mode, units, _, layers, batch_first, _, training, both, *_ = args
    output, hy, cy, _, _ = torch.ops.aten._cudnn_rnn.default(*args)
    if buffer is None:
        # The weights behind each other, as cuDNN reads them.
        buffer = x.new_empty(sum(weight.numel() for weight in weights))
    kept = 0
    if training:
        steps, batch = x.shape[batch_first], x.shape[1 - batch_first]
        values = _KEPT.get(mode, 1) * steps * batch * units * layers * (1 + both)
        kept = -(-values * x.element_size() // _ROUNDED) * _ROUNDED + _HEADER
    reserve = torch.empty(kept, dtype=torch.uint8, device=x.device)
    return output, hy, cy, reserve, buffer


def _backward(*args: Any) -> tuple[Any, ...]:
    x, weights, _, _, hx, cx, *_ = args
    mask = args[-1]
    gradients = [torch.empty_like(each) if given else None for each, given in zip((x, hx), mask)]
    of_cell = torch.empty_like(cx) if cx is not None and mask[2] else None
    of_weights = [torch.empty_like(weight) for weight in weights] if mask[3] else []
    return *gradients, of_cell, of_weights


_REPLACEMENTS = {
    torch.ops.aten._cudnn_rnn.default: _forward,
    torch.ops.aten._cudnn_rnn_backward.default: _backward,
}
