"""How a model runs its sections on JAX and PyTorch: each as a pure function of what it reads.

Keras's layers keep weights, statistics and the state of random generators in variables. A section
that runs twice must find the same values both times, and change them once. So in a
``keras.StatelessScope`` the values are arguments of the section. New values, losses and masks are
among its results, and are written once, outside. Then dropout masks are those of the forward pass,
where ``keras.remat`` draws others.

How a pure function is recomputed is the backend's: ``keras_backend.jax_remat`` or ``torch_remat``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras

from ..keras_backend import JAX, current_backend
from ..keras_backend.gradient_demand import gradient_may_be_asked
from ..op_names import backward_scope, forward_scope
from ..seams.keras.call_context import (
    autocast_dtype,
    autocast_to,
    current_training,
    pass_training,
)
from ..seams.keras.layers import add_losses, layers_in, variables_of
from .call_graph import Graph, as_noted, operations_of
from .masks_and_losses import append_masks, attach_masks, detach_losses
from .sections import Section, split_at_checkpoints
from .timestep_concat import commute_concat

if TYPE_CHECKING or current_backend() == JAX:
    from ..keras_backend import jax_remat as remat
else:
    from ..keras_backend import torch_remat as remat

Arrays = Sequence[Any]


@dataclass(frozen=True, eq=False)
class SectionPlan:
    """What a training pass runs, in order.

    Attributes:
        graph: The graph that the sections are cut from.
        steps: The sections in running order; the last one is not recomputed.
    """

    graph: Graph
    steps: tuple[Section, ...]

    @classmethod
    def of(cls, graph: Graph) -> SectionPlan:
        """Return the plan that recomputes the sections of ``graph``."""
        graph = commute_concat(graph)
        return cls(graph, split_at_checkpoints(graph))

    @property
    def recomputes(self) -> bool:
        """Whether anything is recomputed at all."""
        return any(section.recomputed for section in self.steps)

    @property
    def is_plain(self) -> bool:
        """Whether it runs what the model itself runs."""
        return not self.recomputes

    @property
    def named_steps(self) -> list[tuple[str, Section]]:
        """The sections with their names in programs, such as ``section-3``."""
        named, number = [], 0
        for section in self.steps:
            named.append((f"section-{number}" if section.recomputed else "", section))
            number += section.recomputed
        return named


class SectionRunner:
    """A base class of ``Model``, before the model's class: it runs the sections of the graph."""

    _plan: SectionPlan | None = None

    @property
    def _graph_to_cut(self) -> Graph:
        """What is cut into sections."""
        raise NotImplementedError

    def _start(self) -> None:
        """Prepare nothing: what JAX compiles is traced by the caller, and nothing is kept here."""

    def _replan(self) -> None:
        self._plan = self._make_plan()
        self.train_function = None

    @property
    def plan(self) -> SectionPlan:
        """What the training pass runs: the layers of each section."""
        assert self._plan is not None  # made when the model is
        return self._plan

    def _plan_of(self, graph: Graph) -> SectionPlan:
        return SectionPlan.of(graph)

    def _make_plan(self) -> SectionPlan:
        raise NotImplementedError

    def _prepared(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call

    def _is_recomputed(self, flat: Sequence[Any]) -> bool:
        """Whether the call on the inputs ``flat`` goes by sections."""
        if self._plan is None or self._plan.is_plain or not gradient_may_be_asked():
            return False
        weights = values_of(self.trainable_variables)  # type: ignore[attr-defined]
        return remat.may_be_differentiated([*flat, *weights])

    def _run_sections(self, flat: Arrays) -> list[Any]:
        plan, training = self.plan, current_training()
        if training is None:
            plan = self._plan_of(as_noted(self._graph_to_cut))
        values = dict(zip(plan.graph.inputs, flat))
        for name, section in plan.named_steps:
            if section.recomputed:
                _run_recomputed(section, values, name, self)
            else:
                for call in section.calls:
                    call.run(values)
        return [values[key] for key in plan.graph.outputs]


def values_of(variables: Sequence[Any]) -> list[Any]:
    """Return the values of ``variables`` in their own types, whatever mixed precision casts to."""
    with autocast_to(None):
        return [variable.value for variable in variables]


@dataclass
class _Structure:
    """Which results of a section are what, as found when it was traced.

    Attributes:
        masked: Numbers of the outputs that have a mask.
        layer_numbers: Numbers of the layers that added a loss, one per loss.
        changed: Numbers of the variables that have new values.
    """

    masked: tuple[int, ...] = ()
    layer_numbers: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)


def _run_recomputed(section: Section, values: dict[Any, Any], name: str, model: Any) -> None:
    """Run a section that is recomputed, and add its outputs to ``values``."""
    layers = _layers_of(section)
    variables = variables_of(layers)
    inputs, masked = append_masks([values[key] for key in section.inputs])
    training, cast_to = current_training(), autocast_dtype()
    found = _Structure()
    count = len(variables)
    # The backward pass runs ``run`` again, long after Keras's call has ended.
    replaying = remat.same_state(layers)
    runs = itertools.count()

    def run(*given: Any) -> list[Any]:
        scope = keras.StatelessScope(list(zip(variables, given[:count])), collect_losses=True)
        before = list(map(scope.get_current_value, variables))
        tensors = given[count:]
        attach_masks(tensors, masked, tensors[len(section.inputs) :])
        here = dict(zip(section.inputs, tensors))

        def work() -> list[Any]:
            for call in section.calls:
                call.run(here)
            return [here[key] for key in section.outputs]

        state = replaying() if next(runs) else contextlib.nullcontext()
        with state, pass_training(training, model), autocast_to(cast_to), scope:
            results, found.layer_numbers, losses = detach_losses(layers, work)
        outputs, found.masked = append_masks(results)
        found.changed, changed = [], []
        after = map(scope.get_current_value, variables)
        for number, (old, new) in enumerate(zip(before, after)):
            if new is not old:
                found.changed.append(number)
                changed.append(new)
        return [*outputs, *losses, *changed]

    with remat.named_scope(forward_scope(name)):
        kept = list(map(_kept_until_replayed, variables, values_of(variables)))
        results = remat.recomputed(run, name=backward_scope(name))(*kept, *inputs)
    ends = len(section.outputs) + len(found.masked)
    outputs = results[: len(section.outputs)]
    attach_masks(outputs, found.masked, results[len(section.outputs) : ends])
    values.update(zip(section.outputs, outputs))
    for number, loss in zip(found.layer_numbers, results[ends:]):
        add_losses(layers[number], [loss])
    for number, new in zip(found.changed, results[ends + len(found.layer_numbers) :]):
        variables[number].assign(new)


def _kept_until_replayed(variable: Any, value: Any) -> Any:
    """Return the ``value`` of a variable that a replay finds, whatever is assigned until then."""
    # Weights are updated behind the backward pass.
    return value if variable.trainable else remat.snapshot(value)


def _layers_of(section: Section) -> list[keras.layers.Layer]:
    found: dict[keras.layers.Layer, None] = {}
    for operation in operations_of(section.calls):
        if isinstance(operation, keras.layers.Layer):
            found.update(dict.fromkeys(layers_in(operation)))
    return list(found)
