"""Kernels of convolutions, which are laid out again in the backward pass and not kept.

Keras's kernels are ``(height, width, inputs, outputs)``, and PyTorch convolves fastest with another
order in memory. So each call copies its kernel, and autograd keeps the copy. In a network of small
images these copies take more than the activations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..seams.torch.saved_tensors import permuted_leaf
from .torch_values import Kept, storage_of

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


@contextlib.contextmanager
def kernels_laid_out_again() -> Iterator[None]:
    """Return a context in which convolutions keep no copies of kernels for their gradients."""
    seen = _Kernels()
    with seen, torch.autograd.graph.saved_tensors_hooks(seen.pack, _unpack):
        yield


class _Kernels(TorchFunctionMode):
    """Knows the copies of kernels that convolutions are given."""

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[int, tuple[torch.Tensor, tuple[int, ...]]] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in _CONVOLUTIONS and (source := permuted_leaf(args[1])) is not None:
            self._copies[id(storage_of(args[1]))] = source
        return function(*args, **(kwargs or {}))

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what is kept of ``tensor``."""
        # Once: the id of a storage that was freed may become another one's.
        source = self._copies.pop(id(storage_of(tensor)), None)
        return Kept(tensor) if source is None else _Layout(*source, tensor)


class _Layout:
    """A kernel, and where the elements of its copy lie."""

    def __init__(self, kernel: torch.Tensor, order: tuple[int, ...], copy: torch.Tensor) -> None:
        self._kernel, self._order = Kept(kernel), order
        self._size, self._stride = copy.size(), copy.stride()

    def value(self) -> torch.Tensor:
        """Return the copy; raises ReplayError if the kernel was changed since."""
        kernel = self._kernel.value()
        # The layout decides which algorithm runs, and with it the rounding.
        copy = kernel.new_empty_strided(self._size, self._stride)
        return copy.copy_(kernel.permute(self._order))


def _unpack(kept: Kept | _Layout) -> torch.Tensor:
    return kept.value()
