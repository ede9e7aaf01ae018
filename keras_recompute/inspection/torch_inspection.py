"""The inspection of a function on PyTorch: its residuals, its two programs, and what it repeats.

The function runs once, forward and backward, and its operations are recorded. A residual is a
tensor whose storage is still there when the forward pass has ended, whoever holds it: autograd, a
checkpoint, or a policy. What runs again is what is recorded for autograd during the backward pass.
State stays as it was: of Keras's variables, gradients, and PyTorch's random numbers.

Sources: PyTorch's documentation of ``TorchDispatchMode`` and of ``torch.autograd.graph``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import torch

from ..engine.inspection import (
    Equation,
    ForwardBackward,
    Letters,
    ProgramText,
    Residual,
    Value,
    no_input_text,
    no_result_text,
    type_text,
)
from ..engine.policies import Decision
from ..errors import InvalidArgumentError
from ..keras_backend.torch_call_state import CallState
from ..seams.keras.layers import backend_variable
from .inputs import Call, ReadingScope, built, call_of
from .torch_record import Operation, Recorder, Tensor, dtype_name


@dataclass(frozen=True)
class _Analysis:
    """What the two passes of a function did.

    Attributes:
        inputs: The inputs, each with its kind and its name.
        forward: The operations of the forward pass, in running order.
        backward: The operations of the backward pass, in running order.
        kept: The storages that are still there between both.
    """

    inputs: dict[Tensor, tuple[str, str]]
    results: tuple[Tensor, ...]
    incoming: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    forward: list[Operation]
    backward: list[Operation]
    kept: set[int]

    @property
    def read(self) -> set[int]:
        """The storages that the backward pass reads."""
        return {operand.storage for each in self.backward for operand in each.operands}

    @property
    def saved(self) -> list[tuple[Tensor, Operation]]:
        """The values of the forward pass that are kept for the backward pass.

        Results are held by the caller: they count if the backward pass reads them.
        """
        held = {result.storage for result in self.results}
        kept = (self.kept - held) | (held & self.read)
        found = []
        for operation in self.forward:
            for result in operation.made:
                if result.storage in kept:
                    kept.discard(result.storage)
                    found.append((result, operation))
        return found


def saved_residuals(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Residual, ...]:
    """Return a row for each value that stays in memory between forward and backward pass.

    Inputs that the backward pass reads come first, then results in running order. ``fn`` runs once
    on these arguments. Raises InvalidArgumentError if nothing has a gradient.
    """
    found = _analyze(fn, args, kwargs)
    rows = []
    for value, (kind, name) in found.inputs.items():
        if value.storage in found.read:
            rows.append(_row(value, kind, name))
    for value, operation in found.saved:
        rows.append(_row_of_result(value, operation, found.forward))
    return tuple(rows)


def replay_count(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Return how many operations of the forward pass the backward pass of ``fn`` repeats.

    Constants, and operations that pass values on or reshape them, do not count. ``fn`` runs once.
    """
    found = _analyze(fn, args, kwargs)
    return sum(operation.is_replay and not operation.is_free for operation in found.backward)


def forward_backward(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> ForwardBackward:
    """Return the forward and the backward program of ``fn``, which runs once.

    The forward program returns the results of ``fn`` that have a gradient, then the saved values.
    The backward program takes the inputs that it reads, the saved values and the gradients of the
    results. It returns the gradients of the inputs that have one.
    """
    found = _analyze(fn, args, kwargs)
    letters = Letters(lambda tensor: (tensor.storage, tensor.shape, tensor.part))
    saved = [value for value, _ in found.saved]
    forward_read = {operand.storage for each in found.forward for operand in each.operands}
    origins = {value: " ".join(names).rstrip() for value, names in found.inputs.items()}
    forward_inputs = {v: text for v, text in origins.items() if v.storage in forward_read}
    backward_inputs = {v: text for v, text in origins.items() if v.storage in found.read}
    backward_inputs.update(dict.fromkeys(saved, "saved"))
    backward_inputs.update(dict.fromkeys(found.incoming, "gradient of a result"))
    return ForwardBackward(
        _text(found.forward, forward_inputs, [*found.results, *saved], letters),
        _text(found.backward, backward_inputs, found.gradients, letters),
    )


def _analyze(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Analysis:
    call = call_of(fn, args, kwargs, _flatten_with_path)
    while True:
        devices = [tensor.device for tensor in call.tensors if tensor.device.type == "cuda"]
        # Of a layer of Keras the scope keeps the state.
        state = CallState([] if isinstance(fn, keras.layers.Layer) else _modules_of(fn))
        with torch.random.fork_rng(devices=devices), torch.enable_grad(), state.replay():
            found, read = _run(call, Recorder(_names_of_modules(fn)))
        if built(read):
            return found


def _run(call: Call, recorder: Recorder) -> tuple[_Analysis, list[Any]]:
    """Run the function and its gradient; return what they did, and the variables they read."""
    # Tensors of our own, so that what the arguments were made by is not differentiated.
    given = [tensor.detach() for tensor in call.tensors]
    for tensor in given:
        tensor.requires_grad_(tensor.is_floating_point())
    with ReadingScope() as scope, recorder:
        results = _tensors_in(call(given))
    read = list(scope.read.values())
    # It holds what was assigned.
    del scope
    inputs = _inputs(call, given, read, recorder)
    outputs = [result for result in results if result.requires_grad]
    if not any(tensor.is_floating_point() for tensor in results):
        dtypes = [dtype_name(tensor) for tensor in results]
        raise InvalidArgumentError(no_result_text(call.name, dtypes))
    if not outputs:
        named = [(path, dtype_name(tensor)) for path, tensor in zip(call.paths, given)]
        raise InvalidArgumentError(no_input_text(call.name, named, "torch.tensor(3.0)"))
    forward, recorder.operations = recorder.operations, []
    made = tuple(map(recorder.tensor, outputs))
    # What is in a cycle of Python objects is no residual.
    gc.collect()
    kept = recorder.storages_alive()
    incoming = [torch.ones_like(output) for output in outputs]
    wanted = [tensor for tensor, _ in inputs if tensor.requires_grad]
    with recorder:
        gradients = torch.autograd.grad(outputs, wanted, incoming, allow_unused=True)
    analysis = _Analysis(
        {recorder.tensor(tensor): kind_and_name for tensor, kind_and_name in inputs},
        made,
        tuple(map(recorder.tensor, incoming)),
        tuple(recorder.tensor(gradient) for gradient in gradients if gradient is not None),
        forward,
        recorder.operations,
        kept,
    )
    return analysis, read


def _inputs(
    call: Call, given: Sequence[torch.Tensor], read: Sequence[Any], recorder: Recorder
) -> list[tuple[torch.Tensor, tuple[str, str]]]:
    """Return arguments, variables and captured tensors, each with its kind and its name."""
    found = {id(tensor): (tensor, ("argument", path)) for path, tensor in zip(call.paths, given)}
    for variable in read:
        tensor = backend_variable(variable)
        if tensor is not None:
            found[id(tensor)] = tensor, ("variable", variable.path)
    for tensor, name in recorder.outside.values():
        kind = "variable" if name else "captured tensor"
        found.setdefault(id(tensor), (tensor, (kind, name)))
    return list(found.values())


def _modules_of(fn: Any) -> list[torch.nn.Module]:
    """Return the module of PyTorch that ``fn`` is or checkpoints, in a list."""
    plain = getattr(fn, "__wrapped__", fn)
    return [plain] if isinstance(plain, torch.nn.Module) else []


def _names_of_modules(fn: Any) -> dict[int, str]:
    names: dict[int, str] = {}
    for root in _modules_of(fn):
        names.update((id(module), name) for name, module in root.named_modules())
    return names


def _tensors_in(nest: Any) -> list[torch.Tensor]:
    return [leaf for leaf in keras.tree.flatten(nest) if isinstance(leaf, torch.Tensor)]


def _flatten_with_path(value: Any) -> tuple[list[tuple[str, Any]], Callable[..., Any]]:
    leaves = []
    for path, leaf in keras.tree.flatten_with_path(value):
        leaves.append(("".join(f"[{key!r}]" for key in path), leaf))
    return leaves, lambda new: keras.tree.pack_sequence_as(value, list(new))


def _row_of_result(value: Tensor, maker: Operation, forward: Sequence[Operation]) -> Residual:
    for each in forward:
        if each.mark is not None and each.results[0].storage == value.storage:
            return _row(value, "name", each.mark, each)
    # What fills an allocated tensor made its elements.
    writers = [each for each in forward if each.writes_into(value.storage)]
    maker = writers[-1] if writers else maker
    return _row(value, "operation", maker.name, maker)


def _row(value: Tensor, kind: str, origin: str, maker: Operation | None = None) -> Residual:
    source, layer = (maker.source, maker.layer) if maker is not None else (None, "")
    return Residual(
        value.dtype, value.shape, value.bytes, kind, origin, source, Decision.SAVE, layer
    )


def _text(
    operations: Sequence[Operation],
    origins: dict[Tensor, str],
    outputs: Sequence[Tensor],
    letters: Letters,
) -> ProgramText:
    def text_of(tensor: Tensor) -> Value:
        shown = type_text(tensor.dtype, tensor.shape)
        return Value(letters(tensor), shown, origins.get(tensor, ""))

    inputs = tuple(map(text_of, origins))
    written = []
    for operation in operations:
        if operation.is_identity:
            continue
        operands = tuple(map(letters, operation.operands))
        results = tuple(Value(v.letter, v.type) for v in map(text_of, operation.results))
        replayed = operation.is_replay and not operation.is_free
        written.append(Equation(results, operation.name, operands, replayed))
    return ProgramText(inputs, tuple(written), tuple(map(letters, outputs)))
