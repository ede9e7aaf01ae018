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
from ..layers.masks_and_losses import append_masks, attach_masks, detach_losses
from ..op_names import backward_scope, forward_scope
from ..seams.keras.call_context import autocast_dtype, autocast_to, current_training, pass_training
from ..seams.keras.layers import add_losses, layers_in, variables_of
from .call_graph import Graph, checkpoints_in, operations_of
from .sections import Section, split_at_checkpoints
from .timestep_concat import commute_concat

if TYPE_CHECKING or current_backend() == JAX:
    from ..keras_backend import jax_remat as remat
else:
    from ..keras_backend import torch_remat as remat

Arrays = Sequence[Any]
_TENSOR = object()  # stands where a function returned a tensor


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
    def checkpoints(self) -> tuple[str, ...]:
        """Names of the layers behind which checkpoints stand, and of the checkpoint layers."""
        return tuple(call.operation.name for call in checkpoints_in(self.graph.calls))

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


class TrainedModel:
    """A base class of all models that recompute; it stands before the model's class."""

    def adopt_weights_strategy(self) -> None:
        """Do nothing: Keras distributes its models on these backends by itself."""


class SectionRunner(TrainedModel):
    """A base class of ``Model``, before the model's class: it runs the sections of the graph."""

    _plan: SectionPlan | None

    def _prepare_runs(self) -> None:
        """Prepare nothing: no compiled program is kept between calls."""

    def _layers_version(self) -> None:
        """Return nothing: no plan depends on attributes of layers."""

    def _plan_of(self, graph: Graph) -> SectionPlan:
        return SectionPlan.of(graph)

    def _prepared(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call

    def _is_recomputed(self, flat: Sequence[Any]) -> bool:
        """Whether the call on the inputs ``flat`` goes by sections."""
        if self._plan is None or self._plan.is_plain or not gradient_may_be_asked():
            return False
        # Keras runs other operations then: clones of the layers, or what finds their shapes.
        if any(isinstance(value, keras.KerasTensor) for value in flat):
            return False
        weights = values_of(self.trainable_variables)  # type: ignore[attr-defined]
        return remat.may_be_differentiated([*flat, *weights])

    def _run_sections(self, plan: SectionPlan, flat: Arrays) -> list[Any]:
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
    """Which results of a function are what, as found when it was run.

    Attributes:
        outputs: The number of outputs, which come first.
        masked: Numbers of the outputs that have a mask.
        layer_numbers: Numbers of the layers that added a loss, one per loss.
        changed: Numbers of the variables that have new values.
    """

    outputs: int = 0
    masked: tuple[int, ...] = ()
    layer_numbers: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)


def _run_recomputed(section: Section, values: dict[Any, Any], name: str, model: Any) -> None:
    """Run a section that is recomputed, and add its outputs to ``values``."""

    def function(*tensors: Any) -> list[Any]:
        here = dict(zip(section.inputs, tensors))
        for call in section.calls:
            call.run(here)
        return [here[key] for key in section.outputs]

    inputs = [values[key] for key in section.inputs]
    outputs = _recompute(function, inputs, _layers_of(section), name=name, model=model)
    values.update(zip(section.outputs, outputs))


def recomputes_itself(_: keras.layers.Layer) -> bool:
    """Whether a layer is a ``kr.checkpoint`` of another one: there are none here."""
    return False


def recomputed_call(
    layer: keras.layers.Layer, plain: Callable[..., Any], note: Callable[[bool], None]
) -> Callable[..., Any]:
    """Return ``plain``, a method of ``layer``, which is run again in the backward pass.

    ``note`` is told that it saves memory, which is not known before here.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = keras.tree.flatten((args, kwargs))
        numbers = [n for n, leaf in enumerate(leaves) if keras.ops.is_tensor(leaf)]
        structure: list[Any] = []

        def function(*tensors: Any) -> list[Any]:
            given = list(leaves)
            for number, tensor in zip(numbers, tensors):
                given[number] = tensor
            made_args, made_kwargs = keras.tree.pack_sequence_as((args, kwargs), given)
            made = plain(*made_args, **made_kwargs)
            structure[:] = [keras.tree.map_structure(_without_tensor, made)]
            return list(filter(keras.ops.is_tensor, keras.tree.flatten(made)))

        inputs = [leaves[number] for number in numbers]
        made = iter(_recompute(function, inputs, layers_in(layer), name=layer.name, model=layer))
        note(True)
        return keras.tree.map_structure(
            lambda leaf: next(made) if leaf is _TENSOR else leaf, structure[0]
        )

    return call


def _without_tensor(leaf: Any) -> Any:
    return _TENSOR if keras.ops.is_tensor(leaf) else leaf


def _recompute(
    function: Callable[..., list[Any]],
    given: Arrays,
    layers: Sequence[keras.layers.Layer],
    *,
    name: str,
    model: Any,
) -> list[Any]:
    """Return ``function(*given)``, which is run again in the backward pass.

    It calls ``layers``, with all nested ones among them, inside a call of ``model``.
    """
    variables = variables_of(layers)
    inputs, masked = append_masks(given)
    training, cast_to = current_training(), autocast_dtype()
    found = _Structure()
    count = len(variables)
    # The backward pass runs ``run`` again, long after Keras's call has ended.
    replaying = remat.same_state(layers)
    runs = itertools.count()

    def run(*tensors: Any) -> list[Any]:
        scope = keras.StatelessScope(list(zip(variables, tensors[:count])), collect_losses=True)
        before = list(map(scope.get_current_value, variables))
        arguments, masks = tensors[count : count + len(given)], tensors[count + len(given) :]
        attach_masks(arguments, masked, masks)
        state = replaying() if next(runs) else contextlib.nullcontext()
        with state, pass_training(training, model), autocast_to(cast_to), scope:
            results, found.layer_numbers, losses = detach_losses(
                layers, lambda: function(*arguments)
            )
        found.outputs = len(results)
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
    ends = found.outputs + len(found.masked)
    outputs = list(results[: found.outputs])
    attach_masks(outputs, found.masked, results[found.outputs : ends])
    for number, loss in zip(found.layer_numbers, results[ends:]):
        add_losses(layers[number], [loss])
    for number, new in zip(found.changed, results[ends + len(found.layer_numbers) :]):
        remat.unshare(variables[number])
        variables[number].assign(new)
    return outputs


def _kept_until_replayed(variable: Any, value: Any) -> Any:
    """Return the ``value`` of a variable that a replay finds, whatever is assigned until then."""
    # Weights are updated after the backward pass.
    return value if variable.trainable else remat.snapshot(value)


def _layers_of(section: Section) -> list[keras.layers.Layer]:
    found: dict[keras.layers.Layer, None] = {}
    for operation in operations_of(section.calls):
        if isinstance(operation, keras.layers.Layer):
            found.update(dict.fromkeys(layers_in(operation)))
    return list(found)
