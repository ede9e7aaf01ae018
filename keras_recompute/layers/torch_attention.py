"""Attention on PyTorch that keeps no probabilities: PyTorch's own, which computes them in tiles.

Source: ``torch.nn.functional.scaled_dot_product_attention``.
"""

from __future__ import annotations

from typing import Any

import torch


def has_flash(_: Any) -> bool:
    """Whether Keras's layer keeps no probabilities itself: where it does, ours does as well."""
    return False


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float,
    is_causal: bool = False,
) -> torch.Tensor:
    """Return softmax(scale query key^T) value, ``(batch, queries, heads, value size)``.

    Arguments are those of ``fused_attention.attention``.
    """
    if mask is not None:
        # As Keras adds it: a row without any key attends to all of them.
        low = -3e4 if query.dtype is torch.float16 else -1e9
        mask = torch.where(mask, 0.0, low).to(query.dtype)
    heads_first = [each.transpose(1, 2) for each in (query, key, value)]
    out = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, attn_mask=mask, is_causal=is_causal, scale=scale
    )
    return out.transpose(1, 2)
