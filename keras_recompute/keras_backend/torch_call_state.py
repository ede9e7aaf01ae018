"""What a call on PyTorch finds besides its arguments, for the replays of the call.

Python's state is put back (``torch_python_state``), and so are the values of buffers, what stands
as parameters and buffers of modules, and what is frozen. A weight is not copied: a replay that
reads one whose values changed raises an error.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ..errors import ReplayError
from ..seams.keras.layers import backend_variable, is_trainable_itself, set_trainable_itself
from ..seams.torch.operations import storage_number, tables_of_tensors, version_of
from .torch_python_state import PythonState, is_without_state
from .torch_updates import ReplayedSection, note_section
from .torch_values import describe

_FEW = 65_536  # elements of a state that is copied for each section
# PyTorch warns wherever a compiled module is called while there are hooks on all modules. Ours,
# which is there during a call alone, may see that module too.
warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")


def is_plain_module(value: Any) -> bool:
    """Whether it is a module of PyTorch that is no layer, with state that a call may change."""
    return isinstance(value, torch.nn.Module) and not isinstance(value, keras.layers.Layer)


def snapshot(value: torch.Tensor) -> torch.Tensor:
    """Return ``value`` as it is now: Keras's variables are assigned in place.

    A large one, such as a frozen weight, is not copied: it is ``unshare`` that keeps it.
    """
    # Not by detach(): later assignments would count as changes of what autograd saved.
    return value.data.clone() if value.numel() <= _FEW else value.data


def unshare(variable: Any) -> None:
    """Give ``variable`` a storage of its own before it is assigned, apart from its snapshots."""
    value = backend_variable(variable)
    if value.numel() > _FEW:
        value.data = value.data.clone()


class CallState:
    """The state of layers, modules of PyTorch and other values, from when it is made.

    Args:
        layers: The layers, with all nested ones among them, and modules that a call may use.
            Modules that it calls besides are found while it runs.
        read: Will hold the variables that the call reads, each with its value. Until its replay
            they are not updated.
        used: Functions and other values that it uses.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        read: dict[int, tuple[Any, Any]] | None = None,
        used: Sequence[Any] = (),
    ) -> None:
        self._read = {} if read is None else read
        self._python = PythonState(used)
        self._layers: dict[int, Any] = {}
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._frozen: list[tuple[Any, bool]] = []
        self._weights: list[_Weight] = []
        for layer in layers:
            self._add(layer)
        self._section = ReplayedSection(self._read, self._layers.values())
        note_section(self._section)

    def _add(self, layer: Any) -> None:
        """Note the state of ``layer``; of a module of PyTorch, those inside too."""
        # Of layers all are given.
        for each in layer.modules() if is_plain_module(layer) else [layer]:
            if id(each) not in self._layers:
                self._layers[id(each)] = each
                self._note(each)

    def _note(self, layer: Any) -> None:
        self._python.add_layer(layer)
        if not is_without_state(layer):
            for buffer in layer.buffers():
                if id(buffer) not in self._buffers:
                    self._buffers[id(buffer)] = buffer, snapshot(buffer)
                    if buffer.numel() > _FEW:
                        self._weights.append(_Weight(buffer))
        # A compiled program keeps the rest by itself.
        if torch.compiler.is_compiling():
            return
        if is_plain_module(layer):
            self._tables += [(table, dict(table)) for table in tables_of_tensors(layer)]
        else:
            self._frozen.append((layer, is_trainable_itself(layer)))

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Return the context of the forward pass, which notes what the call reads."""
        if torch.compiler.is_compiling():
            yield
            return
        thread = threading.get_ident()

        def note(module: Any, _: Any) -> None:
            # The compiler of a module inside, which was noted itself, traces this too.
            if torch.compiler.is_compiling():
                return
            if threading.get_ident() == thread:
                self._add(module)

        hook = register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            hook.remove()
        self._weights += self._weights_now()

    @contextlib.contextmanager
    def replay(self) -> Iterator[None]:
        """Return the context of a replay, in which all is as it was; then it is as it is now.

        Raises ReplayError at its end where that cannot be.
        """
        progress = self._python.progress()
        python, buffers, tables, frozen = self._now()
        self._set(self._python.before, self._buffers.values(), self._tables, self._frozen)
        try:
            with _weights_as_before(self._weights):
                yield
        finally:
            self._set(python, buffers, tables, frozen)
            self._section.note_replay()
            self._python.require_progress(progress)

    def _now(self) -> tuple[Any, ...]:
        return (
            self._python.read(),
            [(buffer, snapshot(buffer)) for buffer, _ in self._buffers.values()],
            [(table, dict(table)) for table, _ in self._tables],
            [(layer, is_trainable_itself(layer)) for layer, _ in self._frozen],
        )

    def _set(self, python: Any, buffers: Any, tables: Any, frozen: Any) -> None:
        self._python.write(python)
        for table, entries in tables:
            if [*map(id, table.values())] != [*map(id, entries.values())]:
                table.clear()
                table.update(entries)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for layer, is_trainable in frozen:
            if is_trainable_itself(layer) != is_trainable:
                set_trainable_itself(layer, is_trainable)

    def _weights_now(self) -> Iterator[_Weight]:
        """Yield the tensors that the call may have read besides its arguments."""
        for variable, value in self._read.values():
            if value is not None:
                yield _Weight(backend_variable(variable), value)
        for module in filter(is_plain_module, self._layers.values()):
            yield from map(_Weight, module.parameters(recurse=False))
        yield from map(_Weight, self._python.tensors)


class _Weight:
    """A weight as it is now; a replay reads its ``tensor``, or the snapshot ``given`` for it."""

    def __init__(self, tensor: torch.Tensor, given: torch.Tensor | None = None) -> None:
        self.tensor, self.given = tensor, tensor if given is None else given
        self.needs_gradient = tensor.requires_grad
        self._version, self._storage = version_of(tensor), storage_number(tensor)

    def is_changed(self) -> bool:
        """Whether a replay would read other values."""
        if storage_number(self.tensor) != self._storage:
            return self.given is self.tensor  # a snapshot keeps the old values
        shares = self.given is self.tensor or storage_number(self.given) == self._storage
        return shares and version_of(self.tensor) != self._version


@contextlib.contextmanager
def _weights_as_before(weights: Sequence[_Weight]) -> Iterator[None]:
    """Return a context in which ``weights`` need gradients as before.

    Raises ReplayError at its end if one was read whose values changed.
    """
    changed = _Reads(weight.given for weight in weights if weight.is_changed())
    others = [w for w in weights if w.tensor.requires_grad != w.needs_gradient]
    others = [weight for weight in others if weight.tensor.is_leaf]
    for weight in others:
        weight.tensor.requires_grad_(weight.needs_gradient)
    try:
        with changed if changed.tensors else contextlib.nullcontext():
            yield
    finally:
        for weight in others:
            weight.tensor.requires_grad_(not weight.needs_gradient)
        if changed.found is not None:
            raise ReplayError(
                f"a weight {describe(changed.found)} was changed between the forward pass and the "
                "backward pass, which computes with it again. Change it after the backward pass, "
                "or leave out the checkpoint of what reads it"
            )


class _Reads(TorchFunctionMode):
    """Notes one of ``tensors`` that an operation is given, as ``found``."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.tensors = {id(tensor): tensor for tensor in tensors}
        self.found: torch.Tensor | None = None

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Shapes and types are attributes.
        if getattr(function, "__name__", "") != "__get__":
            for value in keras.tree.flatten((args, kwargs)):
                self.found = self.tensors.get(id(value), self.found)
        return function(*args, **(kwargs or {}))
