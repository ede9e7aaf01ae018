"""Runs of parts of a Keras model on PyTorch with types and shapes alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..seams.keras.layers import backend_variable, layers_in, losses_cleared, values_replaced
from ..seams.torch.fake_tensors import fake_mode
from .torch_batches import keras_device


@contextlib.contextmanager
def fake_run(variables: Sequence[Any], layers: Sequence[Any]) -> Iterator[None]:
    """Return a context in which ``variables`` have fake values, and operations make fake tensors.

    What ``layers`` change in it, such as seeds and statistics, is as before behind it.
    """
    mode = fake_mode()
    nested = dict.fromkeys(inner for layer in layers for inner in layers_in(layer))
    with mode:
        values = [mode.from_tensor(backend_variable(variable)) for variable in variables]
        with values_replaced(variables, values), losses_cleared(list(nested)):
            yield


def fake_of(spec: Any) -> torch.Tensor:
    """Return a fake tensor for type and shape, inside of ``fake_run``."""
    dtype = getattr(torch, spec.dtype)
    return torch.empty(tuple(spec.shape), dtype=dtype, device=keras_device())
