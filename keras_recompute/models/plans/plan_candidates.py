"""The plans that there are for a model, and the peaks that were found by compiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from ...planning import Chain
from ...seams.keras.layers import layers_in
from ...sizes import format_bytes
from ..classes.layer_remat import paths_of
from ..classes.model import Model
from ..keras_graph.call_graph import Graph
from ..keras_graph.cut_points import with_ends_of_branches
from ..measures.step_peak import StepPeaks
from .checkpointed import checkpointed, with_checkpoints
from .peak_prediction import Prediction, Sections

PLAIN: Sections = (0,)  # one section, which is not recomputed
Known = dict[Any, int]  # by sections, or by the paths of layers


@dataclass(frozen=True)
class MemoryPlan:
    """Where the checkpoints are and what they are predicted to do.

    Peaks are of the training step that ``fit`` runs, in bytes: weights, gradients, what the
    optimiser keeps, activations; the batch that is fed in is not among them. Of a model that is not
    compiled the optimiser is SGD; ``method`` says so.

    Attributes:
        checkpoints: Names of the layers behind which they stand.
        layers: Paths of layers that are recomputed one by one instead: recurrent layers, cut along
            time, where that is enough; or blocks, where no place for checkpoints was enough, and
            one layer, such as an encoder, holds most of the activations in the equal blocks inside
            it.
        budget_bytes: The budget that was given, or the memory of the device.
        predicted_peak_bytes: The peak with these checkpoints; with blocks in ``layers`` what was
            compiled.
        plain_peak_bytes: The peak without any: found like that of the plan where one was, else
            predicted.
        time_ratio: The cost of a step over that of a step without checkpoints. Of a model that is
            no graph of layers, what it is at most: one forward pass more.
        chain: What was measured, one step per place where a checkpoint could stand; None for a
            model that is no graph of layers.
        compiled_peak_bytes: The peak that was found by compiling, or with ``device`` what a run
            needs there; None where nothing was compiled.
        measured_peak_bytes: The peak that was measured in the process, without jit, where XLA
            cannot compile the model.
        method: How the peak was found: compiled or measured, and with which loss and optimiser;
            empty for a prediction alone.
        jit_seconds: What a step takes on this machine with ``jit_compile=True``, and
        graph_seconds: with ``jit_compile=False``, both without the optimiser; None where nothing
            was timed.
    """

    checkpoints: tuple[str, ...]
    budget_bytes: int
    predicted_peak_bytes: int
    plain_peak_bytes: int
    time_ratio: float
    chain: Chain | None = field(repr=False)
    compiled_peak_bytes: int | None = None
    jit_seconds: float | None = None
    graph_seconds: float | None = None
    layers: tuple[str, ...] = ()
    measured_peak_bytes: int | None = None
    method: str = ""

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of ``checkpointed`` that recompute the same; empty for the plain model.

        Checkpoints inside of inner models have no place in ``at=``.
        """
        if self.layers:
            return {"layers": list(self.layers)}
        return {"at": list(self.checkpoints)} if self.checkpoints else {}

    @property
    def line(self) -> str:
        """What a plan recomputes, as the line of code that does it; empty for the plain model."""
        return "".join(f"kr.checkpointed(model, {k}={names})" for k, names in self.where.items())

    def __str__(self) -> str:
        if self.layers:
            where = f"{_counted(self.layers, 'layer')} recomputed one by one"
        elif self.checkpoints:
            where = _counted(self.checkpoints, "checkpoint")
        else:
            where = "no checkpoints, the plain model fits"
        found = ""
        if self.measured_peak_bytes is not None:
            found = f", measured in the process {format_bytes(self.measured_peak_bytes)}"
        elif self.compiled_peak_bytes is not None:
            found = f", compiled {format_bytes(self.compiled_peak_bytes)}"
        timed = ""
        if self.jit_seconds is not None and self.graph_seconds is not None:
            timed = (
                f"; a step takes {self.jit_seconds:.2g} s with jit, "
                f"{self.graph_seconds:.2g} s without"
            )
        return (
            f"{where}: predicted peak {format_bytes(self.predicted_peak_bytes)}{found} within "
            f"{format_bytes(self.budget_bytes)}, {format_bytes(self.plain_peak_bytes)} without; "
            f"time x {self.time_ratio:.2f}{timed}{f' ({self.method})' if self.method else ''}"
        )


def _counted(names: tuple[str, ...], noun: str) -> str:
    return f"{len(names)} {noun}{'s' * (len(names) != 1)}"


@dataclass(frozen=True)
class Candidates:
    """The plans that there are for a model, each with the model that follows it.

    ``order`` has the position at which each call of ``graph`` runs.
    """

    model: keras.Model
    graph: Graph
    order: Sequence[int]
    prediction: Prediction
    budget_bytes: int
    plain_peak_bytes: int | None = None  # as far as it was found, and not only predicted

    def with_checkpoints(self, sections: Sections) -> tuple[Model, MemoryPlan]:
        """Return the plan with a checkpoint in front of each section but the first."""
        prediction = self.prediction
        calls = self.graph.calls
        places = [prediction.places[first - 1] for first in sections[1:]]
        ends = with_ends_of_branches(places, calls)
        positions = [self.order[end] for end in ends]
        names = [calls[end].operation.name for end in ends]
        plan = self._plan(
            checkpoints=tuple(names),
            peak_bytes=prediction.peak_bytes(sections),
            extra_seconds=prediction.extra_seconds(sections),
        )
        candidate = with_checkpoints(self.model, positions)
        candidate._is_advised = True  # the plan says what it saves
        return candidate, plan

    def with_time_sections(self) -> tuple[Model, MemoryPlan]:
        """Return the plan to recompute recurrent layers alone, section by section of their time."""
        prediction = self.prediction
        recurrent = [self.graph.calls[position].operation for position in prediction.cut_seconds]
        plan = self._plan(
            layers=tuple(dict.fromkeys(paths_of(recurrent))),
            peak_bytes=prediction.cut_peak_bytes,
            extra_seconds=sum(prediction.cut_seconds.values()),
        )
        return checkpointed(self.model, layers=lambda each: each in recurrent), plan

    def with_blocks(self, compiled: CompiledPeaks) -> tuple[Model, MemoryPlan] | None:
        """Return the compiled plan that recomputes equal blocks inside the largest layer.

        None if there are none.
        """
        number, inside = self.largest()
        blocks = _blocks(inside)
        if not blocks:
            return None
        layers = paths_of(blocks)
        candidate = checkpointed(self.model, layers=lambda each: each in blocks)
        bytes_needed = compiled.peak_bytes(layers, lambda: candidate)
        plan = self._plan(
            layers=layers,
            peak_bytes=bytes_needed,
            extra_seconds=self.prediction.chain.forward_seconds[number],
        )
        return candidate, compiled.with_peak(plan, bytes_needed)

    def largest(self) -> tuple[int, Any]:
        """Return the step with more than half of the activations, and its layer.

        None stands for the layer where there is no such step, or no layers inside to recompute.
        """
        held = self.prediction.chain.activation_bytes
        number = max(range(len(held)), key=held.__getitem__)
        position = self.prediction.places[number]
        if position in self.prediction.cut_seconds:  # its time steps are what it holds
            return number, None
        layer = self.graph.calls[position].operation
        is_composite = isinstance(layer, keras.layers.Layer) and layers_in(
            layer, include_self=False
        )
        return number, layer if is_composite and 2 * max(held) > sum(held) else None

    def _plan(
        self,
        *,
        peak_bytes: int,
        extra_seconds: float,
        checkpoints: tuple[str, ...] = (),
        layers: tuple[str, ...] = (),
    ) -> MemoryPlan:
        chain = self.prediction.chain
        return MemoryPlan(
            checkpoints=checkpoints,
            budget_bytes=self.budget_bytes,
            predicted_peak_bytes=peak_bytes,
            plain_peak_bytes=self.plain_peak_bytes or self.prediction.plain_peak_bytes,
            time_ratio=1 + extra_seconds / chain.plain_seconds if chain.plain_seconds else 1.0,
            chain=chain,
            layers=layers,
        )


class CompiledPeaks:
    """The peaks of plans whose programs were compiled, each found once.

    ``needed_bytes`` returns the peak of a model. ``peaks`` has the compiled training steps that it
    comes from; None where the user gave the function.
    """

    def __init__(
        self, needed_bytes: Callable[[Model], int], known: Known, peaks: StepPeaks | None = None
    ) -> None:
        self._needed_bytes, self.known, self._peaks = needed_bytes, known, peaks

    def peak_bytes(self, where: Any, candidate: Callable[[], Model]) -> int:
        """Return the peak of the program that recomputes at ``where``.

        ``where`` are sections or paths of layers. ``candidate`` makes the model.
        """
        if where not in self.known:
            self.known[where] = self._needed_bytes(candidate())
        return self.known[where]

    def with_peak(self, plan: MemoryPlan, bytes_needed: int) -> MemoryPlan:
        """Return ``plan`` with the peak that was found, and how it was found."""
        if self._peaks is None:
            return replace(plan, compiled_peak_bytes=bytes_needed)
        if self._peaks.refusal is None:
            return replace(plan, compiled_peak_bytes=bytes_needed, method=self._peaks.method)
        return replace(plan, measured_peak_bytes=bytes_needed, method=self._peaks.method)


def _blocks(layer: Any) -> list[Any]:
    """Return the equal layers inside ``layer`` that hold the most layers each.

    They are all instances of one class, and at least two.
    """
    by_class: dict[type, list[Any]] = {}
    for each in dict.fromkeys(layers_in(layer, include_self=False) if layer is not None else ()):
        by_class.setdefault(type(each), []).append(each)
    most, held = 1, []
    for same_class in by_class.values():
        count = len(layers_in(same_class[0])) if len(same_class) > 1 else 0
        if count > most:
            most, held = count, same_class
    return held
