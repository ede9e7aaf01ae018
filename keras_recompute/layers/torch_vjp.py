"""Calls of a function with a hand-written VJP on PyTorch, as ``hand_written_vjp`` has them.

The VJP is a Python function, and what it captures are the residuals. They are taken out of it and
saved as PyTorch saves values for a gradient, so that recomputation around it works.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from ..seams.torch.saved_tensors import keeps_graph
from .inference_mode import inference


def call_with_vjp(
    recurrence: Callable[..., Any], *inputs: torch.Tensor, count: int, name: str
) -> tuple[torch.Tensor, ...]:
    """Return ``count`` results of ``recurrence(*inputs)`` with its hand-written first derivative.

    There is no second derivative.
    """
    del name
    if torch.is_grad_enabled() and any(value.requires_grad for value in inputs):
        made = _WithVjp.apply(recurrence, *inputs)
    else:
        # Else the loop would store residuals that no backward pass reads.
        with inference():
            made = tuple(recurrence(*inputs)[0])
    assert len(made) == count
    return made


class _WithVjp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recurrence: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results, gradient = recurrence(*inputs)
        ctx.rebuild, residuals = _without_tensors(gradient)
        ctx.save_for_backward(*residuals)
        ctx.further = len(inputs)
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[Any, ...]:
        residuals = list(ctx.saved_tensors)
        if keeps_graph():
            # Loops write over them, and there may be another backward pass.
            residuals = [residual.clone() for residual in residuals]
        found = ctx.rebuild(residuals)(*given)
        # Those behind, such as masks, have no gradient.
        return (None, *found, *[None] * (ctx.further - len(found)))


def _without_tensors(
    function: Any,
) -> tuple[Callable[[Sequence[torch.Tensor]], Any], list[torch.Tensor]]:
    """Return the tensors that ``function`` captures, and what makes it of such tensors again."""
    captured = [cell.cell_contents for cell in function.__closure__]
    leaves = keras.tree.flatten(captured)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    rest = keras.tree.map_structure(lambda leaf: _HERE if torch.is_tensor(leaf) else leaf, captured)
    # A new function: other functions may share the cells of the first one.
    code, names = function.__code__, function.__globals__

    def rebuild(tensors: Sequence[torch.Tensor]) -> Any:
        values = iter(tensors)
        contents = keras.tree.map_structure(
            lambda leaf: next(values) if leaf is _HERE else leaf, rest
        )
        cells = tuple(map(types.CellType, contents))
        return types.FunctionType(code, names, closure=cells)

    return rebuild, tensors


_HERE = object()  # stands where a tensor was
