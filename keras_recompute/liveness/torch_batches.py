"""Arguments of programs on PyTorch as types and shapes: meta tensors, fake ones, and values."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch


def meta_of(leaf: Any) -> torch.Tensor:
    """Return type and shape of a part of a batch, as ``fit`` passes it on."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf)
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    is_given = isinstance(leaf, (torch.Tensor, keras.KerasTensor))
    if dtype.startswith("float") and not is_given:
        dtype = keras.config.floatx()
    return torch.empty(tuple(leaf.shape), dtype=getattr(torch, dtype), device="meta")


def meta_of_leaf(leaf: Any) -> Any:
    """Return type and shape of a tensor or array, and anything else as it is."""
    if isinstance(leaf, torch.Tensor):
        meta = torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device="meta")
        return meta.requires_grad_(leaf.requires_grad)
    return meta_of(leaf) if isinstance(leaf, (np.ndarray, keras.KerasTensor)) else leaf


def fake_of_meta(leaf: Any, given: Any = None) -> Any:
    """Return a fake tensor for a meta tensor, inside of a fake mode, and anything else as it is.

    It is on the device of the tensor ``given``, else where Keras puts batches.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    is_placed = isinstance(given, torch.Tensor) and not given.is_meta
    device = given.device if is_placed else keras_device()
    of_leaf: dict[str, Any] = {"dtype": leaf.dtype, "requires_grad": leaf.requires_grad}
    return torch.empty_strided(leaf.size(), leaf.stride(), device=device, **of_leaf)


def keras_device() -> torch.device:
    """Return the device on which Keras puts batches and weights."""
    return keras.ops.convert_to_tensor(0.0).device


def value_of(leaf: Any) -> Any:
    """Return a part of a batch as a tensor, zeros for a type and shape."""
    is_spec = isinstance(leaf, keras.KerasTensor)
    if not is_spec and not (isinstance(leaf, torch.Tensor) and leaf.is_meta):
        return keras.ops.convert_to_tensor(leaf)
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    return keras.ops.convert_to_tensor(np.zeros(tuple(leaf.shape), dtype))
