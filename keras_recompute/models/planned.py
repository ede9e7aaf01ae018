"""``plan``: checkpoints for a Keras model chosen by a memory budget, predicted by ``predicted`` and proved by compiling."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from ..errors import InvalidArgumentError
from ..layers.recomputation_checkpoint import RecomputationCheckpoint
from ..liveness.device_compilers import Device
from ..liveness.local import device_called, unchanged
from ..planning import BudgetTooSmallError, Chain
from ..planning.budget import least
from ..seams.keras.layers import layers_in
from ..sizes import format_bytes, parse_bytes
from .batch import specs_of
from .checkpointed import check_trainable, checkpointed, functional_model, graph_of, with_checkpoints
from .graph import Graph
from .measure import spec_bytes
from .model import Model
from .predicted import Prediction, Sections, predict
from .proof import compiled_peak_bytes, needed_bytes_on
from .step_time import step_seconds

_Needs = dict[Any, int]  # by the shapes of a batch, what is alive whatever the plan, and the sections
_BLOCKS: Sections = ()  # in place of sections, where blocks inside a layer are recomputed
_proved: weakref.WeakKeyDictionary[keras.Model, _Needs] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class MemoryPlan:
    """Where the checkpoints are and what they are predicted to do.

    Peaks are of a training step, in bytes: weights, their gradients, what the optimiser keeps if the model is compiled,
    activations; the batch that is fed in is not among them.

    Attributes:
        checkpoints: Names of the layers behind which they stand.
        layers: Paths of layers that are recomputed one by one instead: no place for checkpoints was enough, and one layer, such
            as an encoder, holds most of the activations in the equal blocks inside it.
        budget_bytes: The budget that was given, or the memory of the device.
        predicted_peak_bytes: The peak with these checkpoints; with ``layers`` what was compiled.
        plain_peak_bytes: The peak without any.
        time_ratio: The cost of a step over that of a step without checkpoints.
        chain: What was measured, one step per place where a checkpoint could stand.
        compiled_peak_bytes: The peak that was found by compiling, or with ``device`` what a run needs there; None where nothing
            was compiled.
        jit_seconds: What a step takes on this machine with ``jit_compile=True``, and
        graph_seconds: with ``jit_compile=False``, both without the optimiser; None where nothing was timed.
    """

    checkpoints: tuple[str, ...]
    budget_bytes: int
    predicted_peak_bytes: int
    plain_peak_bytes: int
    time_ratio: float
    chain: Chain = field(repr=False)
    compiled_peak_bytes: int | None = None
    jit_seconds: float | None = None
    graph_seconds: float | None = None
    layers: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{len(self.checkpoints)} checkpoints" if self.checkpoints else "no checkpoints"
        if self.layers:
            where = f"{len(self.layers)} layers recomputed one by one"
        compiled = "" if self.compiled_peak_bytes is None else f", compiled {format_bytes(self.compiled_peak_bytes)}"
        timed = ""
        if self.jit_seconds is not None and self.graph_seconds is not None:
            timed = f"; a step takes {self.jit_seconds:.2g} s with jit, {self.graph_seconds:.2g} s without"
        return (
            f"{where}: predicted peak {format_bytes(self.predicted_peak_bytes)}{compiled} within "
            f"{format_bytes(self.budget_bytes)}, {format_bytes(self.plain_peak_bytes)} without; time x {self.time_ratio:.2f}"
            f"{timed}"
        )


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
    chain = prediction.chain

    def planned(sections: Sections) -> tuple[Model, MemoryPlan]:
        outcome = prediction.outcome(sections)
        positions = [prediction.places[first - 1] for first in sections[1:]]
        found = MemoryPlan(
            checkpoints=tuple(graph.calls[position].operation.name for position in positions),
            budget_bytes=budget_bytes,
            predicted_peak_bytes=prediction.peak_bytes(sections),
            plain_peak_bytes=prediction.plain_peak_bytes,
            time_ratio=outcome.seconds / chain.plain_seconds if chain.plain_seconds else 1.0,
            chain=chain,
        )
        return with_checkpoints(model, positions), found

    inputs = tuple(specs[key] for key in graph.inputs)
    now = inputs, fixed_bytes, target and target.name  # with another optimiser, or layers frozen, programs need something else
    known: _Needs = {}
    if needed_bytes is None and prove:
        known = _proved.setdefault(model, {})

        def needed_bytes(candidate: Model) -> int:
            if target:
                return needed_bytes_on(target.name, candidate, inputs, optimizer_bytes=optimizer_bytes)
            return compiled_peak_bytes(candidate, inputs, optimizer_bytes=optimizer_bytes)

    def with_times(candidate: Model, found: MemoryPlan) -> tuple[Model, MemoryPlan]:
        if not timed:
            return candidate, found
        jit, graph = (step_seconds(candidate, inputs, jit=jit) for jit in (True, False))
        return candidate, replace(found, jit_seconds=jit, graph_seconds=graph)

    if needed_bytes is None:
        with _naming_what_holds_most(prediction, graph):
            return with_times(*planned(prediction.cheapest_sections(budget_bytes=budget_bytes)))
    prove_by = needed_bytes

    def needed(sections: Sections) -> int:
        if (now, sections) not in known:
            known[now, sections] = prove_by(planned(sections)[0])
        return known[now, sections]

    def by_blocks(refusal: BudgetTooSmallError) -> tuple[Model, MemoryPlan]:
        """Return the plan to recompute the blocks inside the largest layer; raise ``refusal``, or a better one, without any."""
        number, inside = _largest(prediction, graph)
        blocks = _blocks(inside)
        if not blocks:
            raise refusal
        candidate = checkpointed(model, layers=lambda each: each in blocks)
        if (now, _BLOCKS) not in known:
            known[now, _BLOCKS] = prove_by(candidate)
        bytes_needed = known[now, _BLOCKS]
        if bytes_needed > budget_bytes:
            smallest = min(refusal.smallest_budget_bytes, bytes_needed)
            raise BudgetTooSmallError(
                "any plan that was compiled", budget_bytes=budget_bytes, smallest_budget_bytes=smallest
            ) from refusal
        found = MemoryPlan(
            checkpoints=(),
            budget_bytes=budget_bytes,
            predicted_peak_bytes=bytes_needed,
            plain_peak_bytes=prediction.plain_peak_bytes,
            time_ratio=1 + chain.forward_seconds[number] / chain.plain_seconds if chain.plain_seconds else 1.0,
            chain=chain,
            compiled_peak_bytes=bytes_needed,
            layers=tuple(block.path or block.name for block in blocks),
        )
        return candidate, found

    found_before = {sections: n for (when, sections), n in known.items() if when == now}
    try:
        with _naming_what_holds_most(prediction, graph):
            fitting = _cheapest_proved(prediction, budget_bytes, needed, found_before)
    except BudgetTooSmallError as refusal:
        return with_times(*by_blocks(refusal))
    candidate, found = planned(fitting)
    return with_times(candidate, replace(found, compiled_peak_bytes=needed(fitting)))


def _largest(prediction: Prediction, graph: Graph) -> tuple[int, Any]:
    """Return the step that holds more than half of the activations, and its layer if there are layers inside; else None."""
    held = prediction.chain.activation_bytes
    number = max(range(len(held)), key=held.__getitem__)
    layer = graph.calls[prediction.places[number]].operation
    is_composite = isinstance(layer, keras.layers.Layer) and layers_in(layer, include_self=False)
    return number, layer if is_composite and 2 * max(held) > sum(held) else None


def _blocks(layer: Any) -> list[Any]:
    """Return the layers inside ``layer`` of the class that has several instances there, and most layers in each."""
    by_class: dict[type, list[Any]] = {}
    for each in dict.fromkeys(layers_in(layer, include_self=False) if layer is not None else ()):
        by_class.setdefault(type(each), []).append(each)
    several = [alike for alike in by_class.values() if len(alike) > 1 and len(layers_in(alike[0])) > 1]
    return max(several, key=lambda alike: len(layers_in(alike[0])), default=[])


@contextmanager
def _naming_what_holds_most(prediction: Prediction, graph: Graph) -> Iterator[None]:
    """Add to a refusal the layer that holds more than half of the activations, if there are layers inside to recompute."""
    try:
        yield
    except BudgetTooSmallError as refusal:
        largest = _largest(prediction, graph)[1]
        if largest is not None:
            said = (
                f"{refusal}. Most of the activations are those of the layers inside {largest.name!r}, a "
                f"{type(largest).__name__}, where a plan puts no checkpoints: checkpointed(model, layers=...) recomputes them "
                f"one by one"
            )
            refusal.args = (said,)
        raise


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


def _cheapest_proved(
    prediction: Prediction, budget_bytes: int, needed: Callable[[Sections], int], known: dict[Sections, int]
) -> Sections:
    """Return the first of all options, cheapest first, whose ``needed`` bytes are in the budget, as of all after it.

    The search begins with what is predicted to fit and goes on by halves. ``known`` are needs that were found before. Raises
    BudgetTooSmallError with the smallest budget that was found to do.
    """
    options = prediction.sections_for_all_budgets()
    asked = dict(known)

    def suffices(number: int) -> bool:
        sections = options[number]
        asked[sections] = needed(sections)
        return asked[sections] <= budget_bytes

    enough = min((n for n, s in enumerate(options) if known.get(s, budget_bytes + 1) <= budget_bytes), default=len(options))
    predicted = (n for n, sections in enumerate(options) if prediction.peak_bytes(sections) <= budget_bytes)
    guess = next(predicted, len(options) - 1)
    chosen = least(enough, suffices, guesses=[guess, guess - 1, guess + 1])
    if chosen == len(options):
        raise BudgetTooSmallError(
            "any plan that was compiled", budget_bytes=budget_bytes, smallest_budget_bytes=min(asked.values())
        )
    return options[chosen]


def _optimizer_bytes(model: keras.Model) -> int:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return 0
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return _size(optimizer.variables)


def _size(variables: Sequence[keras.Variable]) -> int:
    return sum(spec_bytes(tf.TensorSpec(v.shape, v.dtype)) for v in variables)
