"""Tensors without values, and the numbers of autograd's nodes.

Programs on fake tensors run in moments and without memory, on the devices that they would run on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)

from .valueless_parameters import ValuelessParameter, default_device

__all__ = [
    "UnknownValueError",
    "fake_mode",
    "in_backward",
    "next_node",
    "numbers_as_arrays",
    "running_node",
    "running_pass",
]

# What an operation raises that would have to know a value.
UnknownValueError = DataDependentOutputException


# Elements of a tensor made of Python numbers whose values are known, as sizes are.
_FEW = 64


def fake_mode() -> Any:
    """Return a context in which operations make fake tensors, also of tensors with values.

    Its method ``from_tensor`` makes a fake one of another, a parameter of a parameter.
    """
    mode = _FakeMode(allow_non_fake_inputs=True)
    # It would hold the storages that operations are given, such as set_.
    mode.cache_enabled = False
    return mode


class _FakeMode(FakeTensorMode):
    """Fake tensors know small values, and may stand for parameters without values.

    PyTorch's own mode knows the values of single numbers alone.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._of_valueless: dict[int, tuple[FakeTensor, ValuelessParameter]] = {}

    def may_turn_const(self, t: torch.Tensor) -> bool:
        is_value = t.device.type != "meta" and not self.is_our_fake(t)
        return is_value and t.numel() <= _FEW and t.layout is torch.strided

    def from_tensor(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> FakeTensor:
        if not isinstance(tensor, ValuelessParameter):
            return super().from_tensor(tensor, *args, **kwargs)
        if id(tensor) not in self._of_valueless:
            with self:
                data = torch.empty(tensor.shape, dtype=tensor.dtype, device=default_device())
                made = torch.nn.Parameter(data, requires_grad=tensor.requires_grad)
            self._of_valueless[id(tensor)] = made, tensor  # kept, so that its id stays its own
        return self._of_valueless[id(tensor)][0]


@contextlib.contextmanager
def numbers_as_arrays() -> Iterator[None]:
    """Return a context in which a fake tensor of one number is a NumPy array by its ``item()``."""

    def numpy(self: FakeTensor, **_: Any) -> np.ndarray[Any, Any]:
        if self.numel() != 1:
            return plain_numpy(self)  # which says that there are no values
        return np.full(tuple(self.shape), self.item())

    plain_numpy = FakeTensor.numpy
    FakeTensor.numpy = numpy
    try:
        yield
    finally:
        del FakeTensor.numpy  # which Tensor has


def in_backward() -> bool:
    """Whether a backward pass is running in this thread."""
    return running_pass() is not None


def running_pass() -> int | None:
    """Return the number of the backward pass that is running in this thread, or None."""
    number = int(torch._C._current_graph_task_id())
    return None if number == -1 else number


def running_node() -> int | None:
    """Return the number of the node that a backward pass is running, or None."""
    node = torch._C._current_autograd_node() if in_backward() else None
    return None if node is None else int(node._sequence_nr())


def next_node() -> int:
    """Return the number that autograd gives to its next node.

    That of an operation has its number before a dispatch mode sees the operation.
    """
    return int(torch.autograd._get_sequence_nr())
