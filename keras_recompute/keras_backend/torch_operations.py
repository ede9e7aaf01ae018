"""One operation of PyTorch in a recording: what it is given, and what it makes or changes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ReplayError
from ..seams.torch.operations import is_builtin, written_parameters
from .torch_random import DefaultState, GeneratorState
from .torch_values import Kept, Place, leaves_of, map_leaves, tensors_of

_BLANKS = ("empty", "zeros", "ones", "full")
# They write to the running statistics in training, and do not say so.
_NORMALIZATIONS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
_STATISTICS = (3, 4, 5)  # places of running mean, running variance, and whether it trains


@dataclass(frozen=True)
class Made:
    """An operand or result on a storage that the recording makes."""

    slot: int
    place: Place


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation that a replay can run.

    Attributes:
        number: Its place in the order of all.
        run: PyTorch's operation.
        args: Its operands, in which a ``Made`` or ``Kept`` stands for a tensor.
        kwargs: The same by names.
        made: For each result on a new storage its place among the results.
        changed: Slots that it writes to.
        random: The state of the generator that it draws from.
        has_grad: Whether gradients were recorded: some operations return more then.
    """

    number: int
    run: Any
    args: Any
    kwargs: Any
    made: dict[int, Made]
    changed: tuple[int, ...]
    random: DefaultState | None
    has_grad: bool

    @property
    def reads(self) -> set[int]:
        """Slots that it is given."""
        return {leaf.slot for leaf in leaves_of((self.args, self.kwargs)) if type(leaf) is Made}

    @property
    def writes(self) -> set[int]:
        """Slots that it makes or changes."""
        return {*self.changed, *(made.slot for made in self.made.values())}

    def replay(self, values: dict[int, torch.Tensor]) -> None:
        """Run it on ``values`` by slots, and add its results.

        Raises:
            ReplayError: A value that it reads was changed, or its results have other shapes.
        """

        def operand(leaf: Any) -> Any:
            if isinstance(leaf, Made):
                value = values[leaf.slot]
                return leaf.place.on(value.untyped_storage(), value.device)
            if isinstance(leaf, Kept):
                return leaf.value()
            return leaf.generator() if isinstance(leaf, GeneratorState) else leaf

        args, kwargs = map_leaves(operand, (self.args, self.kwargs))
        random = self.random.restored() if self.random else contextlib.nullcontext()
        with random, torch.set_grad_enabled(self.has_grad):
            results = tensors_of(self.run(*args, **kwargs))
        for number, made in self.made.items():
            if (found := Place.of(results[number])) != made.place:
                raise ReplayError(
                    f"{self.run} made {found} in the replay of recompute_scope(), and {made.place} "
                    "in the forward pass. Put it outside of the scope, or into keep_scope()"
                )
            values[made.slot] = results[number]


def is_blank(operation: Any) -> bool:
    """Whether ``operation`` makes a constant, which something may fill afterwards."""
    # Such as a kernel of Triton or Numba, which no dispatch mode sees.
    return operation.overloadpacket.__name__.removeprefix("new_").startswith(_BLANKS)


def written_by(operation: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among the operands that ``operation`` changes in place."""
    if is_builtin(operation) and operation.overloadpacket.__name__ in _NORMALIZATIONS:
        mean, variance, training = _STATISTICS
        return tensors_of((args[mean], args[variance])) if args[training] else []
    written = []
    for place, name in written_parameters(operation):
        written.append(args[place] if place < len(args) else kwargs.get(name))
    return tensors_of(written)
