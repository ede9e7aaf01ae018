"""``plan``: checkpoints for a Keras model chosen by a memory budget, predicted by ``predicted`` and proved by compiling."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from ..errors import InvalidArgumentError
from ..layers.recomputation_checkpoint import RecomputationCheckpoint
from ..liveness.device_compilers import Device
from ..liveness.local import device_called, unchanged
from ..sizes import parse_bytes
from .batch import specs_of
from .candidates import Candidates, Known, MemoryPlan, Needs, cheapest_predicted, cheapest_proved
from .checkpointed import check_trainable, functional_model, graph_of
from .measure import spec_bytes
from .model import Model
from .predicted import predict
from .proof import compiled_peak_bytes, needed_bytes_on
from .step_time import step_seconds

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
    """Return ``model`` with checkpoints so that training needs at most ``memory_budget``, and the plan.

    The two models share layers and weights, and the result is not compiled. The cheapest plan that fits is taken; a larger
    budget never costs more. A prediction is no proof: compilers keep more or less than it says (docs/choosing.md). So a few
    plans are compiled by XLA, with a loss of squares in place of the model's own, and the one that is returned was found to
    fit. That takes as long as that many first steps.

    Where no place for checkpoints is enough, and one layer holds more than half of the activations in equal blocks inside it,
    as the encoder of a vision transformer does, the plan is to recompute these blocks one by one, if that fits when compiled.

    Args:
        model: What ``checkpointed`` takes for ``every``, without checkpoints.
        memory_budget: A number of bytes, or a text such as ``"128MiB"``; ``"device"`` is all that ``device`` has.
        batch_size: Sequences or images of a batch. It may be left out where the inputs have a fixed one.
        sample: A batch as it is given to ``fit`` (``x``, ``(x, y)``, or a data set of them), by which open sizes are fixed: of
            the batch, where ``batch_size`` is not given, and of sequences.
        timed: Compare costs by running each layer, and not by operation counts. And say of the result what a step takes here,
            with jit and without: which is faster depends on the layers (docs/choosing.md). The weights stay as they are.
        prove: False: the prediction alone decides.
        needed_bytes: A proof of your own: it is given a model and returns what its program needs.
        device: A name of ``kr.liveness.devices()``, such as ``"h100"``: plans are compiled for that device, which need not be
            here, and what is compared with the budget is all that a run needs there, the batch included. ``"local"`` is the
            first GPU that is here, or this machine.

    Returns:
        What ``checkpointed`` returns, and a ``MemoryPlan``.

    Raises:
        BudgetTooSmallError: No plan fits; it has the smallest budget that would do.
        InvalidArgumentError: A model of another kind, one that has checkpoints already or no trainable weights, a size that
            stays unknown, a sample that does not fit, or an unknown device.
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
    target = _target(device, is_proved=prove and needed_bytes is None)
    budget_bytes = _budget_bytes(memory_budget, target)
    functional = functional_model(model)
    check_trainable(model)
    graph = graph_of(functional)
    if any(isinstance(call.operation, RecomputationCheckpoint) for call in graph.calls):
        raise InvalidArgumentError(f"{model.name!r} has RecomputationCheckpoint layers already: plan a model without any")
    specs = specs_of(functional, graph, batch_size=batch_size, sample=sample)
    optimizer_bytes = _optimizer_bytes(model)
    fixed_bytes = _size(model.variables) + _size(model.trainable_variables) + optimizer_bytes
    with unchanged(model.non_trainable_variables if timed else ()):
        prediction = predict(graph, specs, fixed_bytes=fixed_bytes, timed=timed)
    candidates = Candidates(model, graph, prediction, budget_bytes)
    inputs = tuple(specs[key] for key in graph.inputs)

    def by_compiling(candidate: Model) -> int:
        if target:
            return needed_bytes_on(target.name, candidate, inputs, optimizer_bytes=optimizer_bytes)
        return compiled_peak_bytes(candidate, inputs, optimizer_bytes=optimizer_bytes)

    if needed_bytes is not None:
        candidate, found = cheapest_proved(candidates, Needs(needed_bytes, {}))
    elif prove:
        # With another optimiser, or layers frozen, programs need something else.
        now = inputs, fixed_bytes, target and target.name
        known = _compiled.setdefault(model, {}).setdefault(now, {})
        candidate, found = cheapest_proved(candidates, Needs(by_compiling, known))
    else:
        candidate, found = cheapest_predicted(candidates)
    if timed:
        jit, without = (step_seconds(candidate, inputs, jit=jit) for jit in (True, False))
        found = replace(found, jit_seconds=jit, graph_seconds=without)
    return candidate, found


def _target(device: str | None, *, is_proved: bool) -> Device | None:
    if device is None:
        return None
    if not is_proved:
        raise InvalidArgumentError(
            f"device={device!r} is where plans are proved, by its own compiler: leave out prove=False and needed_bytes="
        )
    return device_called(device)


def _budget_bytes(memory_budget: int | str, target: Device | None) -> int:
    if memory_budget != "device":
        return parse_bytes(memory_budget)
    if target is None:
        raise InvalidArgumentError('memory_budget="device" is of which device? Give device=, such as "h100" or "local"')
    return target.memory_bytes


def _optimizer_bytes(model: keras.Model) -> int:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return 0
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return _size(optimizer.variables)


def _size(variables: Sequence[keras.Variable]) -> int:
    return sum(spec_bytes(tf.TensorSpec(v.shape, v.dtype)) for v in variables)
