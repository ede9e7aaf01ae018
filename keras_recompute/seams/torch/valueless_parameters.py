"""Parameters of PyTorch with a type and a shape and no value. Seen with PyTorch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map

# What PyTorch asks a parameter for that needs no value, besides its attributes.
_WITHOUT_VALUE = {
    *("dim", "numel", "size", "stride", "storage_offset", "element_size", "untyped_storage"),
    *("is_complex", "is_floating_point", "__hash__", "__repr__", "__get__", "__set__"),
}


class ValuelessParameter(torch.nn.Parameter):
    """A parameter on the meta device, which becomes an ordinary one when a value is copied into it.

    Where the missing value is read, ``refuse()`` is called, which raises an error. Operations may
    still take the parameter in ``fake_mode``, and while Keras infers shapes on the meta device.
    """

    lacks_value = True
    _refuse: Callable[[], None]

    @classmethod
    def like(
        cls,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        is_trained: bool,
        refuse: Callable[[], None],
    ) -> ValuelessParameter:
        """Return such a parameter."""
        with unset_fake_temporarily():
            made = cls(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=is_trained)
        made._refuse = refuse
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.copy_ and isinstance(args[0], cls) and not args[1].is_meta:
            return _with_value(args[0], args[1])
        is_free = func.__name__ in _WITHOUT_VALUE or default_device() == "meta"
        if not is_free:
            args, kwargs = tree_map(_fake_or_refused, (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _fake_or_refused(given: Any) -> Any:
    """Return for a ``ValuelessParameter`` its fake tensor in the active mode, or refuse it.

    Anything else is returned as it is.
    """
    if not isinstance(given, ValuelessParameter):
        return given
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, FakeTensorMode):
            return mode.from_tensor(given)
    return given._refuse()


def _with_value(parameter: ValuelessParameter, value: Any) -> torch.nn.Parameter:
    """Make an ordinary parameter with ``value`` of ``parameter``, wherever it is held."""
    with torch._C.DisableTorchFunctionSubclass():
        made = torch.nn.Parameter(
            torch.empty(parameter.shape, dtype=parameter.dtype, device=default_device()),
            requires_grad=parameter.requires_grad,
        )
        with torch.no_grad():
            made.copy_(value)
        torch.utils.swap_tensors(parameter, made)
    return parameter


def default_device() -> str:
    """Return the name of the device on which Keras makes tensors now."""
    from keras.src.backend.torch.core import get_device

    return str(get_device())
