"""Recomputation of pure functions on PyTorch, by ``torch.utils.checkpoint``.

It runs a function again when the backward pass first asks for a value that the function saved.
Source: PyTorch's documentation of ``torch.utils.checkpoint``, its variant without reentrance.
"""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import torch
from torch.utils.checkpoint import checkpoint

from ..errors import ReplayError
from ..op_names import parse_op_name
from ..seams.torch.operations import version_of
from ..seams.torch.saved_tensors import hooks_are_allowed
from ..user_code import warn_user
from .torch_call_state import CallState, is_plain_module, snapshot, unshare
from .torch_kernels import kernels_laid_out_again
from .torch_names import named_scope
from .torch_scopes import CheckpointedRegion
from .torch_updates import (
    backward_follows,
    saves_activations_alone,
    updates_of,
)
from .torch_values import describe

__all__ = [
    "CallState",
    "assigned",
    "backward_follows",
    "flatten",
    "is_plain_module",
    "kept",
    "kernels_laid_out_again",
    "leaner_convolutions",
    "may_be_differentiated",
    "named_scope",
    "read_after",
    "recomputed",
    "saves_activations_alone",
    "snapshot",
    "unshare",
    "updates_of",
]

Function = Callable[..., list[torch.Tensor]]
leaner_convolutions = contextlib.nullcontext  # PyTorch's own are lean


def may_be_differentiated(values: Sequence[Any]) -> bool:
    """Whether what follows from ``values`` may be: gradients are recorded, and one has them."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def kept(value: torch.Tensor) -> torch.Tensor:
    """Return ``value``, that of a variable, for replays behind an assignment to the variable.

    It may need a gradient, as the weight does: a replay saves what the forward pass saved.
    """
    if not value.requires_grad or not value.is_leaf:
        return value
    return snapshot(value).requires_grad_()


def assigned(before: torch.Tensor, value: Any) -> Any:
    """Return ``value`` as a variable has it that was ``before``: gradients are the variable's.

    Keras assigns in place and without gradients, so none goes to what made the value.
    """
    return _Assigned.apply(before, value)


class _Assigned(torch.autograd.Function):
    """The second argument, whose gradient is that of the first."""

    @staticmethod
    def forward(_: Any, __: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def flatten(nest: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the leaves of a nest, and a function that puts leaves in their places."""
    # Without the leaves, which the function would keep in memory.
    places = keras.tree.map_structure(lambda _: None, nest)
    return keras.tree.flatten(nest), lambda new: keras.tree.pack_sequence_as(places, list(new))


def read_after(value: torch.Tensor, _: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return ``value``: operations run in the order of the program."""
    return value


# The names that values were marked with, while a function runs that has them checked.
marks: ContextVar[set[str] | None] = ContextVar("marks", default=None)


def recomputed(
    function: Function,
    *,
    name: str,
    layers: Sequence[Any] = (),
    policy: Any = None,
    check_marks: Callable[[Iterable[str]], None] | None = None,
) -> Function:
    """Return ``function`` of tensors, whose intermediate values are made again for its gradient.

    ``function`` takes and returns a flat list of tensors, and calls ``layers``. PyTorch's own
    random numbers are those of the forward pass. Replays run in the scope ``name``. ``policy``
    makes the contexts of selective checkpointing; without one nothing is saved. ``check_marks`` is
    called with the names that values are marked with.
    """
    options: dict[str, Any] = {} if policy is None else {"context_fn": policy}
    # PyTorch ends a replay by an exception once all is made again. On a GPU Keras tries cuDNN for
    # these layers, catches every exception, and would go on with its own loop.
    options["early_stop"] = not any(isinstance(layer, keras.layers.RNN) for layer in layers)

    first = function if check_marks is None else _with_checked_marks(function, check_marks)

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        if not hooks_are_allowed():
            warn_user(
                f"{parse_op_name(name)[1]!r} saves no memory here and is not recomputed: inside of "
                "torch.func.grad, vjp, jacrev and hessian PyTorch does not show what it keeps. "
                "Differentiate by loss.backward() or torch.autograd.grad"
            )
            return first(*tensors)
        runs = itertools.count()

        def each_run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            if not next(runs):
                return first(*tensors)
            with named_scope(name), _freed_when_stopped():
                return function(*tensors)

        region = CheckpointedRegion(each_run, has_policy=policy is not None)
        versions = [version_of(tensor) for tensor in tensors]
        results = list(checkpoint(region, *tensors, use_reentrant=False, **options))
        for tensor, version in zip(tensors, versions):
            if version_of(tensor) != version:
                raise ReplayError(
                    f"{parse_op_name(name)[1]!r} changes its argument {describe(tensor)} in place, "
                    "so it cannot be computed again. Compute without inplace=True, or change a "
                    "copy, such as by x = x + 1 in place of x += 1"
                )
        return results

    return run


def _with_checked_marks(
    function: Function, check_marks: Callable[[Iterable[str]], None]
) -> Function:
    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        found: set[str] = set()
        around = marks.get()
        token = marks.set(found)
        try:
            results = function(*tensors)
        finally:
            marks.reset(token)
        if around is not None:
            around.update(found)
        check_marks(found)
        return results

    return run


@contextlib.contextmanager
def _freed_when_stopped() -> Iterator[None]:
    """Return a context that frees what a replay made when PyTorch stops it by an exception.

    Keras makes a new exception of each that passes a layer, in a variable of a frame that the
    exception holds. So they and all values of the section would be alive until a garbage
    collection, and checkpoints save nothing.
    """
    try:
        yield
    except Exception as error:
        stopped: BaseException | None = error
        while stopped is not None:
            traceback.clear_frames(stopped.__traceback__)
            stopped = stopped.__context__
        raise
