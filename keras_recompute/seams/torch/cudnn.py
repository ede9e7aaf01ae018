"""cuDNN's recurrent kernels on fake tensors: what they return, for a step that does not run.

On fake tensors PyTorch returns their outputs, but neither what they keep for the backward pass nor
their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Values that cuDNN keeps for the backward pass for each timestep, sample and unit, by its number of
# the kind of layer. Their bytes are rounded up, and a header follows: measured on an H200 for 16
# shapes in three types.
_LSTM, _GRU = 2, 3
_KEPT = {_LSTM: 5, _GRU: 6}
_ROUNDED, _HEADER = 32, 256


def replacement(operation: Any) -> Callable[..., Any] | None:
    """Return what to call on fake tensors in place of an operation of cuDNN's; None for others."""
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
    gradients: list[Any] = []
    for given, is_asked in zip((x, hx, cx), mask):
        gradients.append(torch.empty_like(given) if is_asked and given is not None else None)
    return *gradients, [torch.empty_like(weight) for weight in weights] if mask[3] else []


_REPLACEMENTS = {
    torch.ops.aten._cudnn_rnn.default: _forward,
    torch.ops.aten._cudnn_rnn_backward.default: _backward,
}
