"""The memory of a function of PyTorch, or of the training step of a Keras model on it.

It runs once on fake tensors, which have types and shapes and no values, while every storage is
recorded. So it needs neither the memory nor the device that it would run on. Values of variables,
gradients and the states of optimizers are as before when it ends. Workspaces inside of one
operation are not part of the record, and sizes are not rounded up as by an allocator.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..errors import UnsupportedError
from ..op_names import update_scope
from ..seams.keras.layers import (
    backend_variable,
    layers_in,
    losses_cleared,
    values_replaced,
)
from ..seams.keras.name_scopes import current_scopes
from ..seams.keras.optimizers import methods_replaced
from ..seams.torch.fake_tensors import fake_mode, numbers_as_arrays
from .abstract_models import is_abstract
from .categories import INPUT, OPTIMISER, OTHER, WEIGHT, buffer_category
from .compiled_program import batch_of
from .keras_step import (
    DATA_NAMES,
    build_model,
    built_optimizer,
    check_compiled,
    is_model,
    layer_names,
    run_train_step,
)
from .local_device import LOCAL
from .origins import Names
from .parameters import Parameter, describe_variables, mark_fed
from .program import (
    ALWAYS_LIVE,
    INPUT_FEED,
    RESULT,
    TEMPORARY,
    Buffer,
    Program,
    Step,
    held_per_step,
)
from .torch_batches import fake_of_meta, meta_of, meta_of_leaf
from .torch_runs import device_bytes, measured
from .torch_storages import StorageRecording, module_scopes

_VERSION = torch.__version__.split("+")[0]

# What was recorded, parameters, results, and names of layers.
Recorded = tuple[StorageRecording, list[Parameter], list[Any], Names]


def profile(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    input_feed: Sequence[int | str] | None,
    capacity_bytes: int | None,
    layers_of: Any,
    device: str | None,
) -> Program:
    """Return the record of ``fn``, or of the training step of a model; arguments as ``profile``'s.

    A meta tensor of PyTorch stands for type and shape.

    Raises:
        UnsupportedError: ``device`` is "local" and ``fn`` no model, or the program branches on the
            value of a tensor.
    """
    if device == LOCAL and not is_model(fn):
        raise UnsupportedError(
            'device="local" measures the training step of a Keras model alone on PyTorch: leave it '
            "out to record the function on fake tensors"
        )
    if is_model(fn):
        data = batch_of(args, kwargs)
        recorded = _record_training_step(fn, data, input_feed)
    else:
        recorded = _record_function(fn, args, kwargs, input_feed, layers_of)
    name = "training_step" if is_model(fn) else getattr(fn, "__name__", type(fn).__name__)
    program = _program(name, recorded, device, capacity_bytes)
    return measured(program, fn, batch_of(args, kwargs)) if device == LOCAL else program


def profile_step(
    step: Callable[[Any], Any],
    model: Any,
    data: tuple[Any, ...],
    *,
    optimizer: Any,
    layers_of: Any = None,
    device: str | None = None,
) -> Program:
    """Return the record of ``step``, a function of a batch like ``data``.

    It trains the weights of ``model`` by ``optimizer``; both have their variables.
    """
    recorded = _record_step(step, model, optimizer, data, layers_of or model, DATA_NAMES)
    return _program("training_step", recorded, device)


def _program(
    name: str, recorded: Recorded, device: str | None, capacity_bytes: int | None = None
) -> Program:
    capacity_bytes = capacity_bytes or device_bytes(device)
    return Program(
        name=name,
        compiled_by=f"PyTorch {_VERSION} on fake tensors",
        **_steps_and_buffers(*recorded),
        capacity_bytes=capacity_bytes,
    )


def _record_training_step(
    model: Any, data: tuple[Any, ...], input_feed: Sequence[int | str] | None
) -> Recorded:
    check_compiled(model, data)
    data = keras.tree.map_structure(meta_of, data)
    # Where a layer cannot run on the meta device, Keras runs it on values to infer its shapes.
    with fake_mode() if is_abstract(model) else contextlib.nullcontext():
        build_model(model, data)
    optimizer = built_optimizer(model)
    fed = DATA_NAMES[: len(data)] if input_feed is None else input_feed
    return _record_step(partial(run_train_step, model), model, optimizer, data, model, fed)


def _record_step(
    step: Callable[[Any], Any],
    model: Any,
    optimizer: Any,
    data: tuple[Any, ...],
    layers_of: Any,
    fed: Sequence[int | str],
) -> Recorded:
    data = keras.tree.map_structure(meta_of, data)
    kept = [*model.variables, *optimizer.variables]
    described = describe_variables([(v.path, _bytes_of(backend_variable(v))) for v in kept])
    known = set(map(id, kept))
    metrics = [v for v in model.metrics_variables if id(v) not in known]
    for variable in metrics:
        size_bytes = _bytes_of(backend_variable(variable))
        described.append(Parameter(variable.path, OTHER, size_bytes=size_bytes))
    described += _describe(dict(zip(DATA_NAMES, data)))
    mark_fed(described, [name for name in fed if name not in DATA_NAMES[len(data) :]])
    optimiser_paths = [p.name for p in described if p.category == OPTIMISER]
    names = Names.of_variables(
        [p.name for p in described if p.category == WEIGHT],
        optimiser_paths,
        layer_names(layers_of),
        numbered=False,
    )
    variables = [*kept, *metrics]
    mode = fake_mode()
    # Of the microbatches of an update the last one is recorded, which changes the weights.
    recording = StorageRecording(current_scopes, mode, taken=optimizer.name)
    with mode:
        values = [mode.from_tensor(backend_variable(variable)) for variable in variables]
        for value in values:
            value.grad = None  # as fake as the value, of an earlier step
        batch = keras.tree.map_structure(fake_of_meta, data)
        with values_replaced(variables, values), losses_cleared(layers_in(model)):
            with _without_collector(), numbers_as_arrays(), _in_its_scope(optimizer), recording:
                results = step(batch)
            del batch
    return recording, described, [values, results], names


@contextlib.contextmanager
def _in_its_scope(optimizer: Any) -> Iterator[None]:
    """Return a context in which loss scaling runs in a name scope of its own, as other updates do.

    The recording takes branches in that scope, such as the one on whether all gradients are finite.
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        yield
        return
    plain_apply = optimizer.apply

    def apply(*args: Any, **kwargs: Any) -> Any:
        with keras.name_scope(optimizer.name):
            return plain_apply(*args, **kwargs)

    with methods_replaced(optimizer, apply=apply):
        yield


def _record_function(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    input_feed: Sequence[int | str] | None,
    layers_of: Any,
) -> Recorded:
    given = keras.tree.map_structure(meta_of_leaf, (args, kwargs))
    named = {f"argument_{number}": each for number, each in enumerate(given[0])}
    described = _describe({**named, **given[1]})
    mark_fed(described, input_feed or ())
    modules = _modules_of(fn, layers_of)
    mode = fake_mode()

    with module_scopes(_module_name(modules)) as running, _optimizers_kept(running) as optimizers:

        def scopes() -> str:
            return "/".join(filter(None, (current_scopes(), *running)))

        recording = StorageRecording(scopes, mode)
        with mode:
            args, kwargs = keras.tree.map_structure(fake_of_meta, given, (args, kwargs))
            with _without_collector(), recording:
                results = fn(*args, **kwargs)
            del args, kwargs
        for each in recording.read.values():
            if each.tensor.is_leaf and each.tensor.requires_grad:
                each.tensor.grad = each.gradient
    described += _describe_read(recording, modules, optimizers)
    layers = frozenset("/".join(modules.values()).split("/"))
    return recording, described, [results], Names(layers=layers, complete=True, numbered=False)


def _steps_and_buffers(
    recording: StorageRecording, described: Sequence[Parameter], results: Any, names: Names
) -> dict[str, Any]:
    origins, phase = [], None
    for op_name in recording.op_names:
        origins.append(names.origin(op_name, before=phase))
        phase = origins[-1].phase
    last = max(len(origins) - 1, 0)
    buffers = []
    for parameter in described:
        lifetime = INPUT_FEED if parameter.fed else ALWAYS_LIVE
        size_bytes = parameter.size_bytes or 0
        layer = names.variable_layer(parameter.layer)
        buffers.append(
            Buffer(parameter.name, size_bytes, 0, last, lifetime, parameter.category, layer=layer)
        )
    returned = [recording.storage(tensor) for tensor in _tensors_in(results)]
    for storage in recording.storages:
        origin = origins[storage.first_step]
        is_result = any(storage is each for each in returned)
        buffers.append(
            Buffer(
                f"{storage.op_name}.{storage.first_step}",
                storage.size_bytes,
                storage.first_step,
                last if storage.last_step is None else storage.last_step,
                RESULT if is_result else TEMPORARY,
                buffer_category(storage.op_name, origin.phase),
                storage.op_name,
                origin.layer,
                origin.phase,
                origin.section,
            )
        )
    held = held_per_step(buffers, (TEMPORARY, RESULT), len(origins))
    steps = []
    for op_name, size_bytes, origin in zip(recording.op_names, held, origins):
        name = op_name.rpartition("/")[2]
        steps.append(Step(name, size_bytes, op_name, origin.layer, origin.phase, origin.section))
    return {"steps": tuple(steps), "buffers": tuple(buffers), "program_instructions": len(steps)}


def _describe(arguments: dict[str, Any]) -> list[Parameter]:
    """Return a description of each tensor among ``arguments``."""
    described = []
    for name, part in arguments.items():
        leaves = [leaf for leaf in keras.tree.flatten(part) if isinstance(leaf, torch.Tensor)]
        for number, leaf in enumerate(leaves):
            called = name if len(leaves) == 1 else f"{name}[{number}]"
            described.append(Parameter(called, INPUT, size_bytes=_bytes_of(leaf)))
    return described


def _describe_read(
    recording: StorageRecording, modules: dict[Any, str], optimizers: Sequence[Any]
) -> list[Parameter]:
    """Return a description of the tensors with values that the program read."""
    names, states = {}, set()
    for module, path in modules.items():
        for name, tensor in [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]:
            names[id(tensor)] = "/".join(filter(None, (path, name)))
    for optimizer in optimizers:
        states |= {id(each) for each in _tensors_in(list(optimizer.state.values()))}
    described: list[Parameter] = []
    known: set[int] = set()
    for tensor in [each.tensor for each in recording.read.values()]:
        storage = tensor.untyped_storage()
        if id(storage) in known:
            continue
        known.add(id(storage))
        is_weight = id(tensor) in names or isinstance(tensor, torch.nn.Parameter)
        category = OPTIMISER if id(tensor) in states else WEIGHT if is_weight else OTHER
        name = names.get(id(tensor), f"tensor_{len(described)}")
        layer = name.rpartition("/")[0] or None
        described.append(Parameter(name, category, size_bytes=storage.nbytes(), layer=layer))
    return described


def _modules_of(fn: Any, layers_of: Any) -> dict[Any, str]:
    """Return the modules that ``fn`` is, is a method of, or finds, each with its path."""
    found: dict[Any, str] = {}
    values = [layers_of, fn, getattr(fn, "__self__", None)]
    code = getattr(fn, "__code__", None)
    for cell in getattr(fn, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not filled yet
            values.append(cell.cell_contents)
    if code is not None:
        values += [fn.__globals__.get(name) for name in code.co_names]
    for value in values:
        if isinstance(value, torch.nn.Module):
            for name, module in value.named_modules():
                # The outermost has no name, and needs one only if it has no parts.
                is_leaf = next(module.children(), None) is None
                own = name.replace(".", "/") or (type(module).__name__ if is_leaf else "")
                found.setdefault(module, own)
    return found


def _module_name(names: dict[Any, str]) -> Callable[[Any], str]:
    """Return a function that names a running module by its path in the module around it."""

    def name(module: Any) -> str:
        # Keras opens scopes for its layers, which PyTorch takes for modules.
        if isinstance(module, keras.layers.Layer):
            return ""
        return names.get(module, type(module).__name__)

    return name


@contextlib.contextmanager
def _optimizers_kept(running: list[str]) -> Iterator[list[Any]]:
    """Return a context that restores the state of PyTorch's optimizers which make a step.

    Its value holds them. While one makes a step, the scope of updates is in ``running``.
    """
    before: dict[Any, dict[Any, Any]] = {}
    optimizers: list[Any] = []

    def enter(optimizer: Any, *_: Any) -> None:
        if optimizer not in before:
            before[optimizer] = {key: dict(state) for key, state in optimizer.state.items()}
            optimizers.append(optimizer)
        running.append(update_scope())

    def leave(*_: Any) -> None:
        running.pop()

    with contextlib.ExitStack() as hooks:
        hooks.callback(register_optimizer_step_pre_hook(enter).remove)
        hooks.callback(register_optimizer_step_post_hook(leave).remove)
        try:
            yield optimizers
        finally:
            for optimizer, state in before.items():
                optimizer.state.clear()
                optimizer.state.update(state)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Return a context in which no collection comes by chance, so that equal runs are equal."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _bytes_of(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in keras.tree.flatten(tree) if isinstance(leaf, torch.Tensor)]
