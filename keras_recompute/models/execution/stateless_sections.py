"""How a model runs its sections on JAX and PyTorch: each as a pure function of what it reads.

``layers.stateless_functions`` makes it pure, and ``keras_backend.jax_remat`` or ``torch_remat``
recomputes it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras

from ...keras_backend import JAX, current_backend
from ...keras_backend.gradient_demand import gradient_may_be_asked, gradient_may_pass
from ...layers.checkpointed_layer import CheckpointedLayer
from ...layers.stateless_functions import PureCall, call_recomputed, run_recomputed
from ...layers.time_slice import TimeSlice
from ...seams.keras.call_context import autocast_to
from ...seams.keras.layers import attach_mask, layers_in, mask_of
from ...user_code import warn_user
from ..keras_graph.call_graph import Call, Graph, checkpoints_in, operations_of, starting_values
from ..keras_graph.kept_end import CONVOLUTIONS, first_kept, sizes_of
from ..keras_graph.repetitions import repeated_groups
from ..keras_graph.sections import Section, sections_of_groups, split_at_checkpoints
from ..keras_graph.timestep_concat import commute_concat
from .spacing_advice import (
    keeps_nothing_inside,
    keeps_only_inputs_and_outputs,
    layer_of_blocks,
    warn_of_blocks,
    warn_of_frozen_sections,
    warn_of_spacing,
)
from .weights_advice import warn_of_weights

if TYPE_CHECKING or current_backend() == JAX:
    from ...keras_backend import jax_remat as remat
    from ...layers.jax_time_sections import section_recurrent_layers
else:
    from ...keras_backend import torch_remat as remat
    from ...layers.torch_time_sections import section_recurrent_layers

Arrays = Sequence[Any]
_LARGE = 2**14  # elements of a kernel whose copy is worth the time to make it again
_Model: Any = keras.Model if TYPE_CHECKING else object


@dataclass(frozen=True, eq=False)
class SectionPlan:
    """What a training pass runs, in order.

    Attributes:
        graph: The graph that the sections are cut from.
        steps: The sections in running order; the last one is not recomputed.
        repeats_blocks: Whether none is recomputed, and some are blocks that may run as a loop.
    """

    graph: Graph
    steps: tuple[Section, ...]
    repeats_blocks: bool = False
    _first_kept: dict[Any, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> SectionPlan:
        """Return the plan that recomputes the sections of ``graph``."""
        graph = commute_concat(graph)
        return cls(graph, split_at_checkpoints(graph))

    def in_blocks(self) -> SectionPlan:
        """Return the plan with blocks that repeat themselves as sections that keep everything."""
        groups = repeated_groups(self.graph.calls, _kind_of)
        if len(groups) < 2:
            return self
        return SectionPlan(self.graph, sections_of_groups(self.graph, groups), True)

    def first_kept(self, inputs: Arrays) -> int:
        """Return the number of the first section that needs no replay, with all behind it.

        So it is where the backward pass follows at once. ``inputs`` are those of the graph.
        """
        # By shapes, as another batch may have another end.
        shapes = tuple(tuple(value.shape) for value in inputs)
        if shapes not in self._first_kept:
            sizes = sizes_of(self.graph, inputs)
            end = len(self.steps) if sizes is None else first_kept(self.steps, sizes)
            self._first_kept[shapes] = end
        return self._first_kept[shapes]

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
        return not (self.recomputes or self.repeats_blocks)

    @property
    def repeats_layers(self) -> bool:
        """Whether two sections in a row call the same layers, as on parts of a sequence."""
        before: list[Any] = []
        for section in self.steps:
            called = []
            for call in section.calls if section.recomputed else ():
                if not isinstance(call.operation, TimeSlice) and not call.is_checkpoint_layer:
                    called.append(call.operation)
            if called and called == before:
                return True
            before = called
        return False

    @property
    def named_steps(self) -> list[tuple[str, Section]]:
        """The sections with their names in programs, such as ``section-3``."""
        named, number = [], 0
        for section in self.steps:
            named.append((f"section-{number}" if section.recomputed else "", section))
            number += section.recomputed
        return named


class TrainedModel(_Model):
    """A base class of all models that recompute; it stands before the model's class."""

    recomputes = True

    def adopt_weights_strategy(self) -> None:
        """Do nothing: Keras distributes its models on these backends by itself."""

    def train_step(self, *args: Any) -> Any:
        """Train on one batch, as Keras does, in less memory: see ``updates_in_backward``."""
        with remat.updates_of(self) if self.recomputes else nullcontext():
            return super().train_step(*args)


class SectionRunner(TrainedModel):
    """A base class of ``Model``, before the model's class: it runs the sections of the graph."""

    _plan: SectionPlan | None
    _scan_layers: bool
    _is_advised: bool

    @property
    def recomputes(self) -> bool:  # type: ignore[override]
        """Whether the training pass recomputes anything."""
        return self._plan is not None and self._plan.recomputes

    def _prepare_runs(self) -> None:
        """Prepare nothing: no compiled program is kept between calls."""

    def _layers_version(self) -> None:
        """Return nothing: no plan depends on attributes of layers."""

    def _plan_of(self, graph: Graph) -> SectionPlan:
        plan = SectionPlan.of(graph)
        if self._scan_layers and plan.is_plain:
            plan = plan.in_blocks()
            if plan.is_plain:
                warn_user(
                    f"scan_layers has no effect on {self.name!r}: no layers repeat themselves"
                )
        return plan

    def _prepared(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call

    def _is_recomputed(self, flat: Sequence[Any]) -> bool:
        """Whether the call on the inputs ``flat`` goes by sections."""
        if self._plan is None or self._plan.is_plain or not gradient_may_be_asked():
            return False
        # Keras runs other operations then: clones of the layers, or what finds their shapes.
        if any(isinstance(value, keras.KerasTensor) for value in flat):
            return False
        weights = values_of(self.trainable_variables)
        return remat.may_be_differentiated([*flat, *weights])

    def _run_sections(self, plan: SectionPlan, flat: Arrays) -> list[Any]:
        with leaner_layers() if plan.recomputes else nullcontext():
            results, is_replayed = self._run_steps(plan, flat)
        if not self._is_advised:
            self._is_advised = True
            if plan.recomputes and remat.saves_activations_alone(self):
                self._advise(plan, flat, is_replayed)
        return results

    def _advise(self, plan: SectionPlan, flat: Arrays, is_replayed: bool) -> None:
        # On PyTorch Keras holds results of frozen layers too, until the call of the model ends.
        if current_backend() == JAX and not is_replayed:
            if gradient_may_pass(flat, [self]):
                warn_of_frozen_sections(self)
            return
        if layer := layer_of_blocks(plan.graph.calls):
            warn_of_blocks(self, layer)
            return
        recomputed = [section for section in plan.steps if section.recomputed]
        # Sections in a loop make the program smaller, even if they save no memory.
        if all(map(keeps_nothing_inside, recomputed)) and not self._scan_layers:
            warn_of_spacing(self, plan.graph.calls)
        else:
            warn_of_weights(self, plan.graph.calls, sizes_of(plan.graph, flat))

    def _run_steps(self, plan: SectionPlan, flat: Arrays) -> tuple[list[Any], bool]:
        """Return the outputs of the graph, and whether anything may be replayed for them."""
        values = starting_values(plan.graph, flat)
        if self._scan_layers or (current_backend() == JAX and plan.repeats_layers):
            self._run_loops(plan, values)
            return [values[key] for key in plan.graph.outputs], True
        # In a loop of the user's own more may stand between this call and its backward pass.
        follows = remat.backward_follows(self)
        replayed = plan.first_kept(flat) if follows else len(plan.steps)
        before: Section | None = None
        replays = 0
        for number, (name, section) in enumerate(plan.named_steps):
            inputs = [values[key] for key in section.inputs]
            layers = _layers_of(section)
            is_replayed = number < replayed and section.recomputed
            is_replayed = is_replayed and gradient_may_pass(inputs, layers)
            replays += is_replayed
            kept = nullcontext if is_replayed or not follows else remat.kernels_laid_out_again
            function = _function_of(section, before, kept)
            before = section
            if is_replayed:
                outputs = run_recomputed(function, inputs, layers, name=name)
            else:
                outputs = function(*inputs)
            assert outputs is not None  # the layers of a graph have their variables
            values.update(zip(section.outputs, outputs))
        return [values[key] for key in plan.graph.outputs], replays > 0

    def _run_loops(self, plan: SectionPlan, values: dict[Any, Any]) -> None:
        from .jax_section_loops import LoopRunner

        runner = LoopRunner(plan.graph, values, _pure_call)
        runner.run(plan.steps)
        if self._scan_layers and not runner.loops and not self._is_advised:
            warn_user(
                f"scan_layers makes no loop of {self.name!r}: on JAX that takes two sections or "
                "blocks in a row that do the same with other weights, and no masks between them"
            )


@contextmanager
def leaner_layers() -> Iterator[None]:
    """Have Keras's recurrent layers and convolutions take less memory, inside the context."""
    with section_recurrent_layers(), remat.leaner_convolutions():
        yield


def _kind_of(call: Call) -> Any:
    """Return what two calls have in common that may do the same; their traces are compared too."""
    operation = call.operation
    options = []
    for name, value in vars(operation).items():
        if name.startswith("_") or name in ("name", "seed"):
            continue
        if isinstance(value, (str, int, float, tuple)):
            options.append((name, repr(value)))
        elif inspect.isfunction(value):  # such as an activation
            options.append((name, value.__qualname__))
    weights = getattr(operation, "weights", ())
    shapes = tuple((weight.shape, str(weight.dtype)) for weight in weights)
    return type(operation), shapes, tuple(sorted(options))


def _pure_call(section: Section, name: str, before: Section | None) -> PureCall:
    return PureCall(_function_of(section, before), _layers_of(section), name, None)


def values_of(variables: Sequence[Any]) -> list[Any]:
    """Return the values of ``variables`` in their own types, whatever mixed precision casts to."""
    with autocast_to(None):
        return [variable.value for variable in variables]


def _function_of(
    section: Section, before: Section | None = None, convolving: Callable[[], Any] = nullcontext
) -> Callable[..., list[Any]]:
    """Return the section as a function of its inputs; it begins when ``before`` has ended.

    Its convolutions run in a context that ``convolving`` makes.
    """
    made = set() if before is None else set(before.outputs).intersection(section.inputs)

    def function(*tensors: Any) -> list[Any]:
        here = dict(zip(section.inputs, tensors))
        ends = [here[key] for key in made]
        for key in here.keys() - made if ends else ():
            value = remat.read_after(here[key], ends)
            attach_mask(value, mask_of(here[key]))
            here[key] = value
        for call in section.calls:
            with convolving() if _has_large_kernel(call.operation) else nullcontext():
                call.run(here)
        return [here[key] for key in section.outputs]

    return function


def _has_large_kernel(operation: Any) -> bool:
    return isinstance(operation, CONVOLUTIONS) and math.prod(operation.kernel.shape) >= _LARGE


def recomputes_itself(layer: keras.layers.Layer) -> bool:
    """Whether ``layer`` is a ``kr.checkpoint`` of another one."""
    return isinstance(layer, CheckpointedLayer)


def recomputed_call(
    layer: keras.layers.Layer,
    plain: Callable[..., Any],
    note: Callable[[Callable[[], bool]], None],
) -> Callable[..., Any]:
    """Return ``plain``, a method of ``layer``, which is run again in the backward pass.

    ``note`` can ask whether it saves memory: yes, unless the layer is known to keep its inputs and
    outputs alone.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with section_recurrent_layers():
            results = call_recomputed(plain, args, kwargs, layers_in(layer), name=layer.name)
        note(lambda: not keeps_only_inputs_and_outputs(layer))
        return results

    return call


def _layers_of(section: Section) -> list[keras.layers.Layer]:
    found: dict[keras.layers.Layer, None] = {}
    for operation in operations_of(section.calls):
        if isinstance(operation, keras.layers.Layer):
            found.update(dict.fromkeys(layers_in(operation)))
    return list(found)
