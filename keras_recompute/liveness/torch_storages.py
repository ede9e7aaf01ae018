"""A recording of the storages that a PyTorch program makes, from their birth to their end.

Each operation that PyTorch dispatches is a step. Its name is made as XLA's names are: scopes of the
pass and of the section, then of the layers, then the operation. A node of the backward pass has the
scopes of the forward operation that made it. So ``origins`` finds phase, section and layer.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UnsupportedError
from ..keras_backend.torch_names import current_scopes as current_sections
from ..keras_backend.torch_values import map_leaves, storage_of, tensors_of
from ..op_names import FORWARD, RECOMPUTE, backward_scope, parse_op_name, update_scope
from ..seams.torch.cudnn import replacement
from ..seams.torch.fake_tensors import UnknownValueError, in_backward, next_node, running_node
from ..seams.torch.operations import (
    TorchDispatchMode,
    is_fake,
    makes_values,
    reads_number,
)

_REPLAY = backward_scope("replay")  # of PyTorch's own checkpoints, and of scopes


@dataclass
class Storage:
    """A storage that an operation made; ``last_step`` is None while it is alive."""

    op_name: str
    size_bytes: int
    first_step: int
    last_step: int | None = None


@dataclass(frozen=True, eq=False)
class GivenTensor:
    """A tensor with values that a program reads, its gradient before, and what stands for it."""

    tensor: torch.Tensor
    gradient: torch.Tensor | None
    fake: torch.Tensor


class StorageRecording(TorchDispatchMode):
    """A mode that records each operation, and each storage that it makes.

    Attributes:
        op_names: The operations in order.
        storages: What they made, in order.
        read: Tensors with values that the program was given; ``mode`` makes fake ones of them.

    Branches in the scope ``taken`` are taken, whatever the values would be.
    """

    supports_higher_order_operators = True

    def __init__(
        self, scopes: Callable[[], str], mode: Any = None, *, taken: str | None = None
    ) -> None:
        super().__init__()
        self._mode, self._taken = mode, taken
        self.op_names: list[str] = []
        self.storages: list[Storage] = []
        self.read: dict[int, GivenTensor] = {}
        self._scopes = scopes
        self._alive: dict[int, Storage] = {}
        # The scopes in which the nodes of the backward pass were made.
        self._made_in: dict[int, str] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # Questions for attributes, such as a device, and marks for PyTorch's profiler.
        if getattr(operation, "namespace", "") in ("prim", "profiler"):
            return operation(*args, **kwargs)
        # A new constant, or a number that is known.
        is_known = operation is torch.ops.aten.lift_fresh.default or reads_number(operation)
        if self._mode is not None and not is_known:
            args, kwargs = map_leaves(self._fake_of, (tuple(args), kwargs))
        op_name = self._name(operation)
        try:
            results = (replacement(operation) or operation)(*args, **kwargs)
        except UnknownValueError:
            results = _any_value(operation, args, self._taken in self._scopes().split("/"))
        self.op_names.append(op_name)
        # Keras's functions for nested structures leave circles behind, which hold activations. In a
        # run the collector frees them at times of its own.
        gc.collect(0)
        if makes_values(operation):
            for tensor in tensors_of(results):
                self._note(tensor, op_name)
        return results

    def _fake_of(self, leaf: Any) -> Any:
        """Return a fake tensor for one with values, which an operation might change."""
        if not isinstance(leaf, torch.Tensor) or is_fake(leaf):
            return leaf
        if id(leaf) not in self.read:
            gradient = leaf.grad if leaf.is_leaf else None
            self.read[id(leaf)] = GivenTensor(leaf, gradient, self._mode.from_tensor(leaf))
        return self.read[id(leaf)].fake

    def storage(self, tensor: torch.Tensor) -> Storage | None:
        """Return the record of what ``tensor`` stands in, if an operation made it."""
        found = storage_of(tensor)
        return None if found is None else self._alive.get(id(found))

    def _note(self, tensor: torch.Tensor, op_name: str) -> None:
        storage = storage_of(tensor)
        if storage is None or id(storage) in self._alive:
            return
        record = Storage(op_name, storage.nbytes(), len(self.op_names) - 1)
        self.storages.append(record)
        self._alive[id(storage)] = record
        weakref.finalize(storage, self._end, id(storage)).atexit = False

    def _end(self, storage: int) -> None:
        # The last operation may have read it.
        self._alive.pop(storage).last_step = len(self.op_names) - 1

    def _name(self, operation: Any) -> str:
        packet = getattr(operation, "overloadpacket", operation)
        return "/".join(filter(None, (self._path(), packet.__name__)))

    def _path(self) -> str:
        sections, layers = current_sections(), self._scopes()
        if not in_backward():
            path = "/".join((*sections, *filter(None, [layers])))
            self._made_in[next_node() - 1] = path
            return path
        if update_scope() in sections:
            return update_scope()
        made_in = self._made_in.get(running_node() or 0, "")
        if not torch.is_grad_enabled():
            return _backward_of(made_in)
        # Gradients are recorded, so that the forward pass is run again.
        if any(parse_op_name(f"{section}/")[0] == RECOMPUTE for section in sections):
            return "/".join((*sections, layers))
        return "/".join((_REPLAY, layers or _without_scopes(made_in)))


def _backward_of(path: str) -> str:
    """Return the scopes of the gradient of an operation in ``path``."""
    phase, section = parse_op_name(f"{path}/")
    scope = backward_scope(section) if section and phase == FORWARD else None
    return "/".join(filter(None, (scope, "gradients", _without_scopes(path))))


def _without_scopes(path: str) -> str:
    return "/".join(part for part in path.split("/") if not part.startswith("recomputation."))


def _any_value(operation: Any, args: Any, is_taken: bool) -> Any:
    """Return a number in place of one that a program on fake tensors asks for.

    With ``is_taken`` branches are taken; otherwise UnsupportedError is raised for them.
    """
    tensor: Any = args[0] if args else None
    if is_taken and reads_number(operation) and tensor.dtype is torch.bool:
        return True
    if not reads_number(operation) or tensor.dtype is torch.bool:
        raise UnsupportedError(
            f"the program branches on the value of a tensor, by {operation}, which has none in a "
            "record of its memory. Give profile(fn, ...) the part without the branch"
        )
    # Not nought, by which programs divide, such as by the number of steps.
    return 1.0 if tensor.dtype.is_floating_point else 1


@contextlib.contextmanager
def module_scopes(name: Callable[[Any], str]) -> Iterator[list[str]]:
    """Return a context whose value holds the ``name`` of each module of PyTorch that runs."""
    from torch.nn.modules import module as modules

    running: list[str] = []

    def enter(module: Any, _: Any) -> None:
        running.append(name(module))

    def leave(*_: Any) -> None:
        if running:
            running.pop()

    with contextlib.ExitStack() as hooks:
        before = modules.register_module_forward_pre_hook(enter)
        hooks.callback(before.remove)
        hooks.callback(modules.register_module_forward_hook(leave, always_call=True).remove)
        yield running
