"""``plan``: choose checkpoints for a Keras model by a memory budget, verified by compiling."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras

from ...errors import InvalidArgumentError
from ...keras_backend import require
from ...liveness.abstract_models import is_abstract
from ...liveness.device_compilers import Device
from ...liveness.keras_step import build_optimizer
from ...liveness.local_device import device_named, preserving_values
from ...planning.chain import check_count
from ...seams.keras.variables import only_compiling
from ...sizes import parse_bytes
from ..classes.model import Model, named_checkpoints
from ..execution.array_sizes import bytes_of_variables
from ..keras_graph.call_graph import checkpoints_in
from ..keras_graph.cut_points import order_with_most_cuts
from ..measures.backend_measures import (
    reason_to_wait,
    seconds_with_jit_and_without,
    targets_in,
    text_of_specs,
    trained_step,
    value_specs,
)
from ..measures.step_peak import StepPeaks
from .checkpointed import check_trainable, functional_model, graph_of, is_no_graph
from .layer_plan import plan_layers
from .peak_prediction import predict
from .plan_candidates import Candidates, CompiledPeaks, Known, MemoryPlan
from .plan_search import (
    cheapest_predicted,
    cheapest_verified,
    leanest_predicted,
    leanest_verified,
)

_SMALLEST = "smallest"
# What was compiled before, by the shapes of a batch and what is alive whatever the plan.
_compiled: weakref.WeakKeyDictionary[keras.Model, dict[Any, Known]] = weakref.WeakKeyDictionary()


def plan(
    model: keras.Model,
    *,
    memory_budget: int | str,
    batch_size: int | None = None,
    sample: Any = None,
    timed: bool = False,
    prove: bool = True,
    needed_bytes: Callable[[Model], int] | None = None,
    device: str | None = None,
) -> tuple[Model, MemoryPlan]:
    """Return ``model`` with checkpoints so that training fits ``memory_budget``, and the plan.

    The two models share layers and weights, and the result is not compiled. The cheapest plan that
    fits is taken; a larger budget never costs more.

    A prediction is no proof: compilers keep more or less than it says (docs/choosing.md). So a few
    plans are compiled by XLA, and the one that is returned was found to fit. That takes as long as
    that many first steps. What is compiled is the step that ``fit`` runs. Its optimizer is the one
    that the model is compiled with, else SGD. Its loss is the model's where ``sample`` has targets,
    else half the sum of the squares of its outputs; ``plan.method`` says which. The plain model is
    compiled first. Where it fits it is returned without checkpoints, and no plan needs more.

    Where XLA lacks an operation of the model, such as RandomZoom, the step is measured in the
    process instead: it runs without jit, twice for each plan, and all variables keep their values.

    Where no place for checkpoints is enough, equal blocks inside one layer are recomputed one by
    one, if that fits when compiled. The layer must hold more than half of the activations in them,
    as the encoder of a vision transformer does.

    Args:
        model: What ``checkpointed`` takes for ``every``, without checkpoints. Or a model whose
            ``call`` is its own, such as one with a ``train_step``, and a ``sample``. Then the plan
            says which kind of layer inside is recomputed call by call, as by
            ``checkpointed(layers=)``, and the step that is compiled is its own.
        memory_budget: A number of bytes, or a text such as ``"128MiB"``; ``"device"`` is all that
            ``device`` has, and ``"smallest"`` the least that a plan was found to need.
        batch_size: Sequences or images of a batch. It may be left out where the inputs have a fixed
            one.
        sample: A batch as it is given to ``fit`` (``x``, ``(x, y)``, or a data set of them). It
            fixes open sizes: of the batch, where ``batch_size`` is not given, and of sequences.
        timed: Compare costs by running each layer, and not by operation counts. The plan then has
            the time of a step on this machine, with jit and without: which is faster depends on the
            layers (docs/choosing.md). The weights stay as they are.
        prove: False: the prediction alone decides.
        needed_bytes: A proof of your own: it is given a model and returns what its program needs.
        device: A name of ``kr.liveness.devices()``, such as ``"h100"``. Plans are compiled for that
            device, which need not be here. All that a run needs there is compared with the budget,
            the batch included. ``"local"`` is the first GPU that is here, or this machine.

    Returns:
        What ``checkpointed`` returns, and a ``MemoryPlan``.

    Raises:
        BudgetTooSmallError: No plan fits; it has the smallest budget that would do.
        InvalidArgumentError: A model of another kind, one that has checkpoints already or no
            trainable weights, a size that stays unknown, a ``batch_size`` other than the one that
            an input has fixed, a sample that does not fit, or an unknown device.
        DeviceError: The compiler of ``device`` is not installed, or refuses the program.
        UnsupportedError: A layer cannot be measured.

    Examples:
        >>> inputs = x = keras.Input((32,))
        >>> for number in range(8):
        ...     x = keras.layers.Dense(32, "tanh", name=f"dense_{number}")(x)
        >>> plain = keras.Model(inputs, x)
        >>> model, plan = kr.plan(plain, memory_budget="600KiB", batch_size=512, prove=False)
        >>> plan.checkpoints
        ('dense_3',)
    """
    if timed:
        require("plan(timed=)")
        _require_values(model)
    if not prove:
        require("plan(prove=False)")
    if batch_size is not None:
        check_count("batch_size", batch_size, at_least=1)
    target = _target(device, is_proved=prove and needed_bytes is None)
    is_leanest = memory_budget == _SMALLEST
    budget_bytes = 1 if is_leanest else _budget_bytes(memory_budget, target)
    if is_no_graph(model):
        _check_without_graph(model, is_leanest=is_leanest, is_predicted=not prove, timed=timed)
        device_name = target.name if target else None
        return plan_layers(
            model,
            budget_bytes=budget_bytes,
            batch_size=batch_size,
            sample=sample,
            needed_bytes=needed_bytes,
            device=device_name,
        )
    functional = functional_model(model)
    check_trainable(model)
    running = graph_of(functional)
    order = order_with_most_cuts(running.calls)
    graph = replace(running, calls=tuple(running.calls[n] for n in order))
    marks = checkpoints_in(graph.calls)
    if marks:
        raise InvalidArgumentError(
            f"{model.name!r} has {named_checkpoints(marks)} already: plan a model without them"
        )
    with only_compiling():
        specs = value_specs(functional, graph, batch_size=batch_size, sample=sample)
    optimizer_bytes = _optimizer_bytes(model)
    fixed_bytes = bytes_of_variables(model.variables) + optimizer_bytes
    with preserving_values(model.non_trainable_variables if timed else ()), only_compiling():
        prediction = predict(
            graph,
            specs,
            fixed_bytes=fixed_bytes,
            gradients_wait=reason_to_wait(model) is not None,
            timed=timed,
        )
    verified = leanest_verified if is_leanest else cheapest_verified
    candidates = Candidates(model, graph, order, prediction, budget_bytes)
    inputs = tuple(map(specs.__getitem__, graph.inputs))

    if needed_bytes is not None:
        candidate, found = verified(candidates, CompiledPeaks(needed_bytes, {}))
    elif prove:
        structured = keras.tree.pack_sequence_as(functional.input, inputs)
        step = trained_step(model, structured, targets_in(sample, batch_size=inputs[0].shape[0]))
        peaks = StepPeaks(
            step, target.name if target else None, expected_bytes=prediction.plain_peak_bytes
        )
        # With another optimiser or loss, or layers frozen, programs need something else.
        loss = repr(model.loss) if step.targets else None
        batch = text_of_specs(keras.tree.flatten((inputs, step.targets)))
        now = batch, fixed_bytes, target and target.name, type(step.optimizer), loss
        known = _compiled.setdefault(model, {}).setdefault(now, {})
        candidate, found = verified(candidates, CompiledPeaks(peaks.of, known, peaks))
    else:
        predicted = leanest_predicted if is_leanest else cheapest_predicted
        candidate, found = predicted(candidates)
    if timed:
        jit, without = seconds_with_jit_and_without(candidate, inputs)
        found = replace(found, jit_seconds=jit, graph_seconds=without)
    return candidate, found


def _check_without_graph(
    model: keras.Model, *, is_leanest: bool, is_predicted: bool, timed: bool
) -> None:
    """Raise InvalidArgumentError for an option that needs a model that runs a graph of layers."""
    if is_leanest:
        raise InvalidArgumentError(
            f"memory_budget={_SMALLEST!r} needs a model that runs a graph of layers, and "
            f"{model.name!r}, a {type(model).__name__}, is none: give a number of bytes"
        )
    if is_predicted or timed:
        option = "timed=True" if timed else "prove=False"
        raise InvalidArgumentError(
            f"{option} needs a model that runs a graph of layers. {model.name!r}, a "
            f"{type(model).__name__}, can only be planned by compiling its training step: "
            "leave it out"
        )


def _require_values(model: keras.Model) -> None:
    if is_abstract(model):
        raise InvalidArgumentError(
            f"timed=True runs the layers of {model.name!r}, whose weights have no values: it was "
            "built in kr.liveness.abstract(). Build it outside of it, or leave timed out"
        )


def _target(device: str | None, *, is_proved: bool) -> Device | None:
    if device is None:
        return None
    if not is_proved:
        raise InvalidArgumentError(
            f"device={device!r} means that its compiler verifies the plan: leave out prove=False "
            "and needed_bytes="
        )
    return device_named(device)


def _budget_bytes(memory_budget: int | str, target: Device | None) -> int:
    if memory_budget != "device":
        return parse_bytes(memory_budget)
    if target is None:
        raise InvalidArgumentError(
            'memory_budget="device" needs a device: give device=, such as "h100" or "local"'
        )
    return target.memory_bytes


def _optimizer_bytes(model: keras.Model) -> int:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return 0
    build_optimizer(optimizer, model)
    return bytes_of_variables(optimizer.variables)
