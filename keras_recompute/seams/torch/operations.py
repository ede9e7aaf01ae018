"""Operations as PyTorch dispatches them: what they write, and tensors without their gradients.

A mode that sees all of them, ``TorchDispatchMode``, is documented by PyTorch, but stands in a
private module.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

__all__ = [
    "TorchDispatchMode",
    "below_autograd",
    "current_mode",
    "detached_alias",
    "is_builtin",
    "is_fake",
    "makes_values",
    "reads_number",
    "storage_number",
    "tables_of_tensors",
    "tensors_on_storage",
    "version_of",
    "without_modes",
    "written_parameters",
]

_ASSIGNMENTS = torch._C.DispatchKey.ADInplaceOrView


def current_mode() -> Any:
    """Return the innermost dispatch mode that is entered, or None."""
    return _get_current_dispatch_mode()


def is_builtin(operation: Any) -> bool:
    """Whether ``operation`` is one of PyTorch's own library, and no function of functions."""
    return isinstance(operation, OpOverload) and operation.namespace == "aten"


@functools.cache
def written_parameters(operation: Any) -> tuple[tuple[int, str], ...]:
    """Return place and name of the parameters that ``operation`` says it writes to."""
    if not isinstance(operation, OpOverload):
        return ()
    arguments = enumerate(operation._schema.arguments)
    return tuple(
        (place, argument.name)
        for place, argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def reads_number(operation: Any) -> bool:
    """Whether ``operation`` gives Python the number in a tensor."""
    return operation is torch.ops.aten._local_scalar_dense.default


@functools.cache
def makes_values(operation: Any) -> bool:
    """Whether ``operation`` returns more than what it was given, or views of that."""
    return any(result.alias_info is None for result in operation._schema.returns)


def version_of(tensor: torch.Tensor) -> int:
    """Return how often ``tensor`` and its views were changed in place; 0 where none counts."""
    return 0 if tensor.is_inference() else int(tensor._version)


def storage_number(tensor: torch.Tensor) -> int:
    """Return a number of the storage of ``tensor``, another one for each that is alive.

    0 where it has none. The storage is not held, and may be emptied and filled again.
    """
    if tensor.layout is not torch.strided:
        return 0
    return int(tensor.untyped_storage()._cdata)


def tables_of_tensors(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and buffers that stand in ``module`` itself, by their names."""
    return module._parameters, module._buffers


def detached_alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` without its gradient, sharing values and version, in a mode too.

    There PyTorch would give the alias a version of its own.
    """
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_ASSIGNMENTS)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_ASSIGNMENTS, False)
    try:
        return tensor.detach()
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_ASSIGNMENTS, excluded)


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is one of ``FakeTensorMode``, which has no values."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and isinstance(tensor, fakes.FakeTensor)


def tensors_on_storage(tensor: torch.Tensor) -> int:
    """Return how many tensors share the storage of ``tensor``, plus a number that stays."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def below_autograd() -> Any:
    """Return a context in which operations run as a dispatch mode sees them: no gradients."""
    return torch._C._AutoDispatchBelowAutograd()


def without_modes() -> Any:
    """Return a context in which no dispatch mode sees the operations that run."""
    return torch._C._DisableTorchDispatch()
