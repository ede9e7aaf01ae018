"""What a recording of operations holds of a tensor: its place in a storage, or its values.

A storage is what PyTorch allocates; views of it are tensors too. So a tensor that is computed again
is a ``Place`` on the storage that the replay makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ReplayError
from ..seams.torch.operations import detached_alias, is_fake, version_of


@dataclass(frozen=True)
class Place:
    """Where the elements of a tensor stand in a storage, and how they are read."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugated: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Place:
        """Return the place of ``tensor`` in its storage."""
        size, stride = tuple(tensor.size()), tuple(tensor.stride())
        return cls(tensor.dtype, size, stride, tensor.storage_offset(), tensor.is_conj())

    def on(self, storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
        """Return the tensor at this place of ``storage``, which is on ``device``."""
        tensor = torch.empty(0, dtype=self.dtype, device=device)
        tensor.set_(storage, self.offset, self.size, self.stride)
        return tensor.conj() if self.conjugated else tensor

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}[{','.join(map(str, self.size))}]"


class Kept:
    """A tensor as it is now: whoever asks for it after it was changed gets an error.

    It holds neither the tensor's gradient nor what that was computed from.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = detached_alias(tensor), version_of(tensor)

    def storage(self) -> torch.UntypedStorage | None:
        """Return the storage of the tensor, if it has one."""
        return storage_of(self._tensor)

    def copy(self) -> None:
        """Hold a copy, since the tensor is about to be changed."""
        if self._version == version_of(self._tensor):
            self._tensor = self._tensor.clone()
            self._version = version_of(self._tensor)

    def value(self) -> torch.Tensor:
        """Return the tensor.

        Raises:
            ReplayError: It was changed in place since.
        """
        if (version := version_of(self._tensor)) != self._version:
            raise changed_in_place(str(describe(self._tensor)), version, self._version)
        return self._tensor


def changed_in_place(what: str, version: int, expected: int) -> ReplayError:
    """Return the error that ``what`` was changed before the backward pass has read it."""
    return ReplayError(
        f"{what} was changed in place (it is at version {version}, expected {expected}) before the "
        "backward pass read it, or computed from it what recompute_scope() did not store. Change a "
        "copy, such as by x = x + 1 in place of x += 1, or change it after the backward pass"
    )


def describe(tensor: torch.Tensor) -> str:
    """Return type and shape, such as ``float32[8,4]``."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}[{','.join(map(str, tensor.size()))}]"


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage that a ``Place`` of ``tensor`` would speak of; None where it has none.

    That is of strided tensors without operations of their own, the fake ones among them.
    """
    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if tensor.layout is not torch.strided or (own and not is_fake(tensor)):
        return None
    # No public name makes the negative of a view.
    return None if tensor.is_neg() or tensor.is_quantized else tensor.untyped_storage()


def checksum(tensor: torch.Tensor) -> int | None:
    """Return a number that another result would not have; None where it would cost too much.

    Away from the CPU reading it waits for the device, and sums depend on the order of threads. So
    it is asked there only where PyTorch's algorithms are deterministic.
    """
    exact = tensor.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    # PyTorch writes only parts of its workspaces, which are bytes.
    if not exact or is_fake(tensor) or not tensor.numel() or tensor.dtype is torch.uint8:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    size = tensor.element_size()
    # Twice as many bytes at a time take a tenth of the time.
    flat = tensor.is_contiguous() and (tensor.numel() * size) % 8 == 0
    if flat and tensor.storage_offset() * size % 8 == 0:
        return int(tensor.view(-1).view(torch.int64).sum())
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(tensor.view(integers[size]).sum())


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return ``tree``, of lists, tuples and dicts, with ``function`` of each leaf in its place."""
    if isinstance(tree, (list, tuple)):
        return type(tree)([map_leaves(function, each) for each in tree])
    if isinstance(tree, dict):
        return {name: map_leaves(function, each) for name, each in tree.items()}
    return function(tree)


def leaves_of(tree: Any) -> Iterator[Any]:
    """Yield the leaves of ``tree``, which is of lists, tuples and dicts."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if not isinstance(tree, (list, tuple)):
        yield tree
        return
    for each in tree:
        yield from leaves_of(each)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in ``tree``, in order."""
    return [leaf for leaf in leaves_of(tree) if isinstance(leaf, torch.Tensor)]
