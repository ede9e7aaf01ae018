"""A record of what a function does on PyTorch: its operations, and the storages that they made.

The record holds no tensor but those that come from outside, so that it keeps nothing alive.
"""

from __future__ import annotations

import inspect
import itertools
import traceback
from dataclasses import dataclass
from typing import Any

import keras
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from ..layers.torch_policies import name_of_mark
from ..user_code import Frame, Source, source_among

# It makes a tensor of the elements of a NumPy array or a list.
_CONSTANT = torch.ops.aten.lift_fresh.default

_ALLOCATIONS = ("empty", "new_empty")


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor: the number of its storage, its part of that, and its size."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    part: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Operation:
    """``results = name(operands)``.

    Attributes:
        mark: What ``checkpoint_name`` calls its result, if it is such a mark.
        is_replay: Whether it is recorded for autograd, and so not back-propagation itself.
        is_random: Whether it draws random numbers.
        source: The line of the user's code.
        layer: The innermost layer or module that runs.
    """

    name: str
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    mark: str | None
    is_replay: bool
    is_random: bool
    source: Source | None
    layer: str

    @property
    def made(self) -> list[Tensor]:
        """The results with storages of their own."""
        given = {operand.storage for operand in self.operands}
        return [result for result in self.results if result.storage not in given]

    @property
    def is_identity(self) -> bool:
        """Whether its results are operands, unchanged."""
        return not self._in_place and set(self.results) <= set(self.operands)

    def writes_into(self, storage: int) -> bool:
        """Whether it changes the elements of a tensor that is there."""
        return self._in_place and any(result.storage == storage for result in self.results)

    @property
    def _in_place(self) -> bool:
        return self.name.endswith("_")

    @property
    def is_free(self) -> bool:
        """Whether it only passes values on, allocates, or computes nothing from a tensor."""
        passes_on = not self.made and not self._in_place
        computes = bool(self.operands) or self.is_random
        return passes_on or not computes or self.name.startswith(_ALLOCATIONS)


class Recorder(TorchDispatchMode):
    """Records the operations of what runs in it.

    Attributes:
        operations: The operations of the pass that runs, in running order.
        outside: Tensors that no operation made, such as weights, with the names of their modules.
    """

    def __init__(self, modules: dict[int, str]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.outside: dict[int, tuple[torch.Tensor, str]] = {}
        self._modules = modules
        # Numbers of the storages that are there.
        self._storages: Any = WeakIdKeyDictionary()
        self._numbers = itertools.count()
        self._made: set[int] = set()

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = _tensors_in((args, kwargs or {}))
        module, source = _place()
        operands = tuple(map(self.tensor, given))
        if function is _CONSTANT:
            self._made.update(operand.storage for operand in operands)
        for tensor, operand in zip(given, operands):
            if operand.storage not in self._made:
                self.outside.setdefault(id(tensor), (tensor, self._weight_name(module, tensor)))
        mark = name_of_mark(function)
        results = function(*args, **(kwargs or {}))
        found = tuple(map(self.tensor, _tensors_in(results)))
        self._made.update(result.storage for result in found)
        self.operations.append(
            Operation(
                name=function.overloadpacket.__name__,
                operands=operands,
                results=found,
                mark=mark,
                is_replay=torch.is_grad_enabled(),
                is_random=torch.Tag.nondeterministic_seeded in function.tags,
                source=source,
                layer=self._name_of(module),
            )
        )
        return results

    def tensor(self, tensor: torch.Tensor) -> Tensor:
        """Return the record of ``tensor``."""
        storage = tensor.untyped_storage()
        if storage not in self._storages:
            self._storages[storage] = next(self._numbers)
        return Tensor(
            self._storages[storage],
            dtype_name(tensor),
            tuple(tensor.shape),
            tensor.numel() * tensor.element_size(),
            (tensor.storage_offset(), tensor.stride()),
        )

    def storages_alive(self) -> set[int]:
        """Return the numbers of the storages that somebody holds."""
        return set(self._storages.values())

    def _name_of(self, module: Any) -> str:
        if isinstance(module, keras.layers.Layer):
            return str(module.path or module.name)
        return self._modules.get(id(module), type(module).__name__ if module is not None else "")

    def _weight_name(self, module: Any, tensor: torch.Tensor) -> str:
        """Return the name of a weight of ``module``, which runs; otherwise an empty text."""
        if module is None:
            return ""
        for name, weight in (*module.named_parameters(), *module.named_buffers()):
            if weight is tensor:
                return ".".join(filter(None, (self._name_of(module), name)))
        return ""


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of the type of a tensor's elements, such as ``float32``."""
    return str(tensor.dtype).split(".")[-1]


def _tensors_in(nest: Any) -> list[torch.Tensor]:
    return [leaf for leaf in keras.tree.flatten(nest) if isinstance(leaf, torch.Tensor)]


def _place() -> tuple[Any, Source | None]:
    """Return the innermost module that runs, and the innermost line of the user's code."""
    frames: list[Frame] = []
    module = None
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        code = frame.f_code
        frames.append((code.co_filename, line, code.co_name))
        if module is None and code.co_argcount and code.co_varnames[0] == "self":
            owner = frame.f_locals.get("self")
            module = owner if isinstance(owner, torch.nn.Module) else None
    return module, source_among(frames)
