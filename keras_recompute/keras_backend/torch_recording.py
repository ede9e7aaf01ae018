"""A recording of PyTorch's operations, from which values that were not stored are made again.

It knows storages, not tensors: views are no operations, but other places in a storage. A storage
that an operation made has a number, its *slot*. What was made outside is held as it is.

A replay runs the operations that lead to the values which the backward pass still reads, in their
order and with their random numbers. Each is an operation of PyTorch's own on the level below
autograd, so no Python code of the program runs twice. What no replay may run is kept: results of
operations from outside of PyTorch, which may be impure, and constants made by no operand, into
which a kernel may write that no dispatch mode sees.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..errors import ReplayError
from ..seams.torch.operations import (
    below_autograd,
    detached_alias,
    is_builtin,
    is_fake,
    makes_values,
    version_of,
)
from .torch_operations import Made, Operation, is_blank, written_by
from .torch_random import DefaultState, GeneratorState
from .torch_values import (
    Kept,
    Place,
    changed_in_place,
    checksum,
    leaves_of,
    map_leaves,
    storage_of,
    tensors_of,
)

_FILLS = (
    *("bernoulli_", "uniform_", "normal_", "random_", "exponential_", "geometric_"),
    *("cauchy_", "log_normal_", "copy_"),
)
_MANY = 100  # operations after which those that nothing needs are dropped


class Handle:
    """A value that autograd asked to save, and that is made again when it is read.

    Attributes:
        slot: Its storage.
        place: Its place there.
        time: How many operations had run when it was saved.
        replayed: The value, between the replay and the reading.
    """

    def __init__(self, recording: Recording, slot: int, tensor: torch.Tensor, time: int) -> None:
        self.slot, self.place, self.time = slot, Place.of(tensor), time
        self.replayed: torch.Tensor | None = None
        self._recording, self._version = recording, version_of(tensor)
        self._device = tensor.device
        self._storage = weakref.ref(tensor.untyped_storage())
        self._checksum = checksum(tensor)
        self._witness = _without_values(tensor)

    @property
    def is_gone(self) -> bool:
        """Whether the value has to be made again."""
        return self.replayed is None and self._storage() is None

    def value(self) -> torch.Tensor:
        """Return the value, which is made again if it is not there any more.

        Raises:
            ReplayError: It, or what it follows from, was changed since, or is made otherwise.
        """
        version = self._version if self._witness is None else version_of(self._witness)
        if version != self._version:
            raise changed_in_place(f"{self.place}", version, self._version)
        storage = self._storage()
        if storage is not None:
            return self.place.on(storage, self._device)
        if self.replayed is None:
            self._recording.replay()
        value, self.replayed = self.replayed, None
        assert value is not None  # this handle is among those that a replay fills
        if self._checksum is not None and checksum(value) != self._checksum:
            raise ReplayError(
                f"{self.place}, made inside recompute_scope(), has other values in the replay. "
                "Either it follows from a tensor that was changed past PyTorch's count, such as by "
                ".data or NumPy, or an operation is not deterministic. Change a copy, or put the "
                "operation into keep_scope()"
            )
        return value


class Recording:
    """The operations of one scope, while a value that they make is alive or may be asked for.

    Attributes:
        slots: The slot of each storage that is alive, by the storage's identity.
        reads: How often a backward pass has read a saved value, in all recordings.
    """

    reads = 0

    def __init__(self, released: Callable[[Recording], None], owners: dict[int, Recording]) -> None:
        self.slots: dict[int, int] = {}
        self._reads_before: dict[int, int] = {}  # by slot: ``reads`` when it was made
        self._released, self._owners = released, owners
        self._operations: list[Operation] = []
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        # Storages of constants that nothing has used yet.
        self._blanks: dict[int, Place] = {}
        self._count, self._next_slot, self._prune_at = 0, 0, _MANY
        self._closed = False

    def run(self, operation: Any, args: Any, kwargs: dict[str, Any], *, recompute: bool) -> Any:
        """Return ``operation(*args, **kwargs)``, and note what a replay needs of it.

        With ``recompute`` the values that it makes are not stored.
        """
        written = written_by(operation, args, kwargs)
        if not is_builtin(operation):
            self._keep(written)
            return operation(*args, **kwargs)
        if is_blank(operation):
            self._keep(written)
            return self._remember_blank(operation, args, kwargs)
        if self._blanks:
            self._use_blanks(operation, args, kwargs, recompute=recompute)
        # Such as momentum, in a scope around whole updates: what leads to it grows without end.
        self._keep([tensor for tensor in written if self._is_older_than_a_read(tensor)])
        outside = [tensor for tensor in written if self._slot_of(tensor) is None]
        changed = tuple(slot for each in written if (slot := self._slot_of(each)) is not None)
        self._copy_before_change(outside)
        if not changed and not (recompute and makes_values(operation)):
            return operation(*args, **kwargs)

        def reference(leaf: Any) -> Any:
            if isinstance(leaf, torch.Generator):
                return GeneratorState.of(leaf)
            if not isinstance(leaf, torch.Tensor):
                return leaf
            slot = self._slot_of(leaf)
            if slot is not None:
                return Made(slot, Place.of(leaf))
            # Its replay writes to the copy.
            is_written = any(leaf is each for each in outside)
            return Kept(leaf.clone() if is_written else leaf)

        random = DefaultState.before(operation, args, kwargs)
        operands = map_leaves(reference, (tuple(args), kwargs))
        known = {
            id(storage) for each in tensors_of((args, kwargs)) if (storage := storage_of(each))
        }
        results = operation(*args, **kwargs)
        made = self._new_storages(tensors_of(results), known) if recompute else {}
        if made or changed:
            self._add(operation, operands, made, changed, random)
        return results

    def handle(self, tensor: torch.Tensor) -> Handle | None:
        """Return what stands for ``tensor`` till the backward pass; None if it was made outside."""
        slot = self._slot_of(tensor)
        if slot is None:
            return None
        handle = Handle(self, slot, tensor, self._count)
        self._handles.add(handle)
        return handle

    def close(self) -> None:
        """End the scope: no operation follows."""
        self._closed = True
        self._prune()

    def replay(self) -> None:
        """Make again the values of all handles that have none."""
        wanted = [handle for handle in list(self._handles) if handle.is_gone]
        operations = self._leading_to(wanted, ())
        last_use: dict[int, int] = {}
        for operation in operations:
            last_use.update(dict.fromkeys(operation.reads | operation.writes, operation.number))
        last_use.update((handle.slot, self._count) for handle in wanted)
        values: dict[int, torch.Tensor] = {}
        devices = {each.device.type for each in _sources_of(operations)} | {"cpu"}
        with contextlib.ExitStack() as around:
            around.enter_context(below_autograd())
            for device in devices - {"meta"}:
                # The casts of mixed precision are operations of the recording.
                around.enter_context(torch.autocast(device, enabled=False))
            for operation in operations:
                operation.replay(values)
                for slot in operation.reads | operation.writes:
                    if last_use[slot] == operation.number:
                        del values[slot]
            for handle in wanted:
                value = values[handle.slot]
                handle.replayed = handle.place.on(value.untyped_storage(), value.device)

    def _slot_of(self, tensor: torch.Tensor) -> int | None:
        storage = storage_of(tensor)
        return None if storage is None else self.slots.get(id(storage))

    def _is_older_than_a_read(self, tensor: torch.Tensor) -> bool:
        """Whether a backward pass has read something since ``tensor`` was made."""
        slot = self._slot_of(tensor)
        return slot is not None and self._reads_before[slot] < Recording.reads

    def _new_storages(self, results: Sequence[torch.Tensor], known: set[int]) -> dict[int, Made]:
        made = {}
        for number, tensor in enumerate(results):
            storage = storage_of(tensor)
            if storage is None or id(storage) in known or id(storage) in self._owners:
                continue
            slot, self._next_slot = self._next_slot, self._next_slot + 1
            self.slots[id(storage)], self._reads_before[slot] = slot, Recording.reads
            self._owners[id(storage)] = self
            weakref.finalize(storage, self._forget, id(storage)).atexit = False
            made[number] = Made(slot, Place.of(tensor))
        return made

    def _add(
        self,
        operation: Any,
        operands: tuple[Any, Any],
        made: dict[int, Made],
        changed: tuple[int, ...] = (),
        random: DefaultState | None = None,
    ) -> None:
        number, self._count = self._count, self._count + 1
        self._operations.append(
            Operation(number, operation, *operands, made, changed, random, torch.is_grad_enabled())
        )
        if len(self._operations) >= self._prune_at:
            self._prune()

    def _remember_blank(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """Return what ``operation`` makes, which is recorded only if another one fills it."""
        result = operation(*args, **kwargs)
        storage = storage_of(result) if isinstance(result, torch.Tensor) else None
        if storage is not None and id(storage) not in self.slots:
            self._blanks[id(storage)] = Place.of(result)
            weakref.finalize(storage, self._blanks.pop, id(storage), None).atexit = False
        return result

    def _use_blanks(self, operation: Any, args: Any, kwargs: Any, *, recompute: bool) -> None:
        """Record the making of a blank that ``operation`` fills whole; any other use keeps it."""
        fills = recompute and operation.overloadpacket.__name__ in _FILLS
        for number, tensor in enumerate(tensors_of((args, kwargs))):
            storage = storage_of(tensor)
            blank = None if storage is None else self._blanks.pop(id(storage), None)
            if blank is not None and fills and not number and Place.of(tensor) == blank:
                options = {"dtype": blank.dtype, "device": tensor.device}
                operands = (blank.size, blank.stride), options
                made = self._new_storages([tensor], set())
                self._add(torch.ops.aten.empty_strided.default, operands, made)

    def _keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take ``tensors`` for made outside from now on: no replay could change them again."""
        for tensor in tensors:
            if self._slot_of(tensor) is not None:
                self._forget(id(tensor.untyped_storage()))

    def _forget(self, storage: int) -> None:
        """Note that a storage is freed, or is no longer one of this recording."""
        self._reads_before.pop(self.slots.pop(storage, -1), None)
        self._owners.pop(storage, None)
        if self._closed and not self.slots:
            self._prune()
            self._released(self)

    def _copy_before_change(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep what recorded operations read of ``tensors``, which are about to be changed."""
        storages = [storage for each in tensors if (storage := storage_of(each)) is not None]
        if not storages or not self._operations:
            return
        self._prune()
        for operation in self._operations:
            for leaf in leaves_of((operation.args, operation.kwargs)):
                if isinstance(leaf, Kept) and any(leaf.storage() is each for each in storages):
                    leaf.copy()

    def _prune(self) -> None:
        """Drop the operations that lead to no value which is alive or may be asked for."""
        self._operations = self._leading_to(list(self._handles), list(self.slots.values()))
        self._prune_at = 2 * len(self._operations) + _MANY

    def _leading_to(self, handles: Sequence[Handle], slots: Iterable[int]) -> list[Operation]:
        """Return the operations that lead to ``handles`` and to ``slots``, in their order."""
        by_time = sorted(handles, key=lambda handle: handle.time)
        needed, found = set(slots), []
        for operation in reversed(self._operations):
            while by_time and by_time[-1].time > operation.number:
                needed.add(by_time.pop().slot)
            if operation.writes & needed:
                found.append(operation)
                needed -= {made.slot for made in operation.made.values()}
                needed |= operation.reads
        return found[::-1]


def _without_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor that goes on counting changes of ``tensor``, and holds no values.

    None for a fake one, whose storage is part of it.
    """
    if is_fake(tensor):
        return None
    witness = detached_alias(tensor)
    witness.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return witness


def _sources_of(operations: Sequence[Operation]) -> list[torch.Tensor]:
    found = []
    for operation in operations:
        leaves = leaves_of((operation.args, operation.kwargs))
        found += [leaf.value() for leaf in leaves if isinstance(leaf, Kept)]
    return found
