"""A plan for a model that is no graph of layers: which layers inside are recomputed call by call.

A model with a ``call`` or a ``train_step`` of its own has no places for checkpoints. What can be
chosen is which kind of layer inside it is recomputed, as by ``checkpointed(model, layers=...)``.
Each choice is compiled as the training step that ``fit`` runs on a batch like the sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from ...errors import InvalidArgumentError, RecomputeWarning
from ...keras_backend import TORCH, current_backend
from ...liveness import Program, profile
from ...liveness.keras_step import training_step
from ...seams.keras.layers import layers_in
from ...seams.keras.training import has_own_train_step
from ..classes.layer_remat import RematLayers, paths_of, with_recomputed_layers
from ..measures.backend_measures import batch_spec, first_batch, trained_step
from ..measures.step_peak import StepPeaks
from .checkpointed import check_trainable
from .plan_candidates import PLAIN, CompiledPeaks, Known, MemoryPlan
from .plan_search import too_small

_MOST_KINDS = 6  # each is compiled
# A backward pass costs two forward passes; all that is replayed costs one more.
_AT_MOST = 4 / 3


@dataclass(frozen=True)
class _OwnStep:
    """The training step of a compiled model by its own ``train_step``, like a ``TrainedStep``."""

    model: keras.Model
    data: tuple[Any, ...]
    description: str = "its own training step"

    @property
    def found_by(self) -> str:
        """How its peak is found."""
        return "recorded on fake tensors" if current_backend() == TORCH else "compiled"

    @property
    def specs(self) -> list[Any]:
        return keras.tree.flatten(self.data)

    def compiled(
        self,
        layers: Sequence[keras.layers.Layer],
        *,
        device: str | None = None,
        layers_of: Any = None,
    ) -> Program:
        """Return the record of the step in which each call of ``layers`` is recomputed."""
        with RematLayers(layers).active() if layers else nullcontext():
            return profile(self.model, *self.data, device=device, layers_of=layers_of)

    def of(self, layers: Sequence[keras.layers.Layer]) -> Callable[..., Any]:
        """Return that step on TensorFlow, a function of the flat batch."""
        step = training_step(self.model, self.data)

        def recomputed(*batch: Any) -> Any:
            with RematLayers(layers).active() if layers else nullcontext():
                return step(*keras.tree.pack_sequence_as(self.data, batch))

        return recomputed


def plan_layers(
    model: keras.Model,
    *,
    budget_bytes: int,
    batch_size: int | None = None,
    sample: Any,
    needed_bytes: Callable[[Any], int] | None = None,
    device: str | None = None,
) -> tuple[Any, MemoryPlan]:
    """Return ``model`` with the layers recomputed that make its step fit, and the plan.

    ``batch_size`` replaces that of ``sample``, as in plans of graphs.

    Raises InvalidArgumentError without a sample or for a model that is not built, and
    BudgetTooSmallError where no kind of layer is enough.
    """
    if sample is None:
        raise InvalidArgumentError(
            f"{model.name!r}, a {type(model).__name__}, has a call or train_step of its own, so a "
            "plan must compile its training step. Give sample=, a batch as for fit"
        )
    parts = first_batch(sample)
    data = keras.tree.map_structure(lambda leaf: batch_spec(leaf, batch_size), parts)
    peaks = _peaks(model, data, device)
    known: Known = {}
    compiled = CompiledPeaks(needed_bytes or peaks.of, known, None if needed_bytes else peaks)

    def as_candidate(layers: Sequence[keras.layers.Layer]) -> Any:
        # A model of its own has no optimizer yet: the step of a compiled model is the model's.
        takes_layers = isinstance(peaks.step, _OwnStep) and needed_bytes is None
        return layers if takes_layers else with_recomputed_layers(model, layers)

    plain_bytes = compiled.peak_bytes(PLAIN, lambda: as_candidate([]))
    layers: Sequence[keras.layers.Layer] = []
    if plain_bytes > budget_bytes:
        check_trainable(model)
        layers = _first_that_fits(model, budget_bytes, compiled, as_candidate)
    paths = paths_of(layers)
    bytes_needed = known[paths or PLAIN]
    plan = MemoryPlan(
        checkpoints=(),
        budget_bytes=budget_bytes,
        predicted_peak_bytes=bytes_needed,
        plain_peak_bytes=plain_bytes,
        time_ratio=_AT_MOST if layers else 1.0,
        chain=None,
        layers=paths,
    )
    return with_recomputed_layers(model, layers), compiled.with_peak(plan, bytes_needed)


def _peaks(model: keras.Model, data: tuple[Any, ...], device: str | None) -> StepPeaks:
    if not model.compiled and not has_own_train_step(model):
        return StepPeaks(trained_step(model, data[0]), device)
    return StepPeaks(_OwnStep(model, data), device, layers_of=model)


def _first_that_fits(
    model: keras.Model,
    budget_bytes: int,
    compiled: CompiledPeaks,
    as_candidate: Callable[[Any], Any],
) -> Sequence[keras.layers.Layer]:
    for layers in _kinds_of(model):
        paths = paths_of(layers)
        with warnings.catch_warnings():
            # Layers that save nothing alone are no mistake here: their kind does not fit.
            warnings.simplefilter("ignore", RecomputeWarning)
            needed = compiled.peak_bytes(paths, partial(as_candidate, layers))
        if needed <= budget_bytes:
            return layers
    raise too_small(budget_bytes, compiled.known)


def _kinds_of(model: keras.Model) -> list[list[keras.layers.Layer]]:
    """Return the layers inside ``model`` by their class, those with the fewest weights first.

    Recomputing few weights takes the least time, as far as weights tell. Classes without weights
    are left out, and so is what is a model of its own.
    """
    by_class: dict[type, list[keras.layers.Layer]] = {}
    for layer in dict.fromkeys(layers_in(model, include_self=False)):
        if layer.trainable_weights and not isinstance(layer, keras.Model):
            by_class.setdefault(type(layer), []).append(layer)
    several = [layers for layers in by_class.values() if len(layers) > 1]
    several.sort(key=lambda layers: sum(layer.count_params() for layer in layers))
    return several[-_MOST_KINDS:]
