"""Executes a plan on tensors: plain calls as they are, sections and loops through the engine."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import keras
import tensorflow as tf

from ...engine import Partition, build, lower, target_now, trace
from ...engine.graph import is_gathered, tensor_specs
from ...engine.policies import Policy, save_nothing, save_replay_sources
from ...engine.scan import (
    Carry,
    Dimension,
    Scanned,
    StackedOutput,
    can_scan,
    dimensions,
    nested_scan,
    section_spec,
)
from ...keras_backend.gradient_demand import reads_known_variables
from ...layers.masks_and_losses import append_masks, attach_masks
from ...layers.time_sections import section_recurrent_layers
from ...planning.nested_sections import equal_groups
from ...seams.keras.layers import layers_in
from ...seams.tensorflow.gradients import is_taped_here
from ..keras_graph.call_graph import Graph, Key, Values, checkpoints_in, operations_of
from ..keras_graph.constant_values import values_without_gradient
from ..keras_graph.fingerprint import Fingerprints, Level
from ..keras_graph.isomorphic_layers import sharing_changes, substituted_weights, weights_of
from ..keras_graph.repeated_blocks import inner_loops
from ..keras_graph.section_loops import SectionLoop, find_loops
from ..keras_graph.sections import Section, as_one_section, split_at_checkpoints
from ..keras_graph.timestep_concat import commute_concat
from .gradient_paths import GradientPaths
from .partition_cache import PartitionCache
from .side_outputs import SideOutputs

# What comes after the last checkpoint, in the names of operations.
_END = "end"


@dataclass(frozen=True, eq=False)
class ExecutionPlan:
    """What a training pass runs, in order: single sections, and loops of equal ones."""

    graph: Graph
    steps: tuple[Section | SectionLoop, ...]
    levels: int = 1
    keeps_results: bool = True

    @classmethod
    def of(
        cls,
        graph: Graph,
        levels: int = 1,
        *,
        replays_end: bool = False,
        level: Level = Level.SAME_VARIABLES,
        keeps_results: bool = True,
    ) -> ExecutionPlan:
        """Return the plan that recomputes the sections of ``graph``, equal ones in loops.

        Loops are nested in ``levels``.

        With ``replays_end`` what comes after the last checkpoint is recomputed too. A part of a
        model needs that if other parts run before its backward pass. ``level`` says in what
        sections must be equal: under Level.SAME_STRUCTURE isomorphic ones become loops, and so do
        isomorphic blocks inside sections. Without ``keeps_results`` only checkpoints are kept, even
        where a replay that reads results of a section would cost less. A stash of several
        microbatches asks for that.
        """
        graph = commute_concat(graph)
        sections = split_at_checkpoints(graph, replays_end=replays_end, keeps_results=keeps_results)
        known = Fingerprints()
        steps = find_loops(sections, graph, level=level, fingerprints=known)
        if level is Level.SAME_STRUCTURE:
            steps = _with_inner_steps(steps, known)
        return cls(graph, tuple(steps), levels, keeps_results)

    @classmethod
    def without_recomputation(cls, graph: Graph) -> ExecutionPlan:
        """Return the plan that keeps every activation."""
        return cls(graph, as_one_section(graph))

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Names of the layers behind which checkpoints stand, and of the checkpoint layers."""
        return tuple(call.operation.name for call in checkpoints_in(self.graph.calls))

    @property
    def recomputes(self) -> bool:
        """Whether anything is recomputed at all."""
        return any(step.recomputed for step in self.steps)

    @property
    def is_plain(self) -> bool:
        """Whether it runs what the model itself runs."""
        return not self.recomputes and not any(step.inner_steps for step in self.steps)

    @property
    def named_steps(self) -> list[tuple[str, Section | SectionLoop]]:
        """The steps, with their names in programs and reports: ``section-3``, ``sections-0-7``."""
        named, first = [], 0
        for step in self.steps:
            count = len(step.sections) if isinstance(step, SectionLoop) else int(step.recomputed)
            if count > 1:
                name = f"sections-{first}-{first + count - 1}"
            else:
                name = f"section-{first}" if count else ""
            named.append((name, step))
            first += count
        return named


def execute(
    plan: ExecutionPlan, inputs: Sequence[tf.Tensor], partitions: PartitionCache | None = None
) -> list[tf.Tensor]:
    """Run ``plan`` on the inputs of its graph, and return the values of its outputs.

    In a graph under construction what it runs is written there. Called eagerly, each section runs
    as compiled functions that belong to ``partitions``: give the same ones for calls that are
    alike. Where anything is recomputed, recurrent layers of Keras are cut along time wherever they
    stand.
    """
    partitions = partitions or PartitionCache()
    if not plan.recomputes:
        return _execute(plan, inputs, partitions)
    with section_recurrent_layers() as cuts:
        outputs = _execute(plan, inputs, partitions)
    partitions.is_cut_in_time |= bool(cuts)
    return outputs


def _execute(
    plan: ExecutionPlan, inputs: Sequence[tf.Tensor], partitions: PartitionCache
) -> list[tf.Tensor]:
    graph = plan.graph
    values: Values = dict(zip(graph.inputs, inputs))
    without_gradient = values_without_gradient(graph, inputs)
    whole = _Context(
        values, partitions, plan.levels, without_gradient, keeps_results=plan.keeps_results
    )
    for state in graph.initial_states:
        states = state.layer.get_initial_state(batch_size=whole.batch)
        values[state] = keras.tree.flatten(states)[state.slot]

    replayed = _replayed_steps(plan, without_gradient)
    for name, step in plan.named_steps:
        if isinstance(step, SectionLoop):
            _run_loop(step, whole, name)
        elif step in replayed:
            _run_section(step, whole, name, whole.policy)
        elif step is plan.steps[-1] and (replayed or not plan.recomputes) and not plan.is_plain:
            # Nothing of it is replayed, but it is written as the sections are, with the passes of
            # the target, and stands behind a fence. Otherwise a compiler puts off the gradients of
            # its weights, and what they need stays in memory through the replay of all sections
            # before it.
            _run_section(step, whole, _END, None)
        else:
            _run_calls(step, whole, name or _END)
    return list(map(values.__getitem__, graph.outputs))


def _replayed_steps(plan: ExecutionPlan, without_gradient: set[Key]) -> list[Section | SectionLoop]:
    """Return the steps that are recomputed, but for sections that no gradient passes through."""
    # Without a tape inside the whole may be differentiated later, by what it is given too.
    constant = without_gradient if is_taped_here() else set()
    replayed: list[Section | SectionLoop] = []
    for step in plan.steps:
        if not _read_known_variables(operations_of(step.calls)):
            constant = set()
        is_constant = isinstance(step, Section) and constant.issuperset(step.outputs)
        if step.recomputed and not is_constant:
            replayed.append(step)
    return replayed


def _read_known_variables(operations: Iterable[keras.Operation]) -> bool:
    found: list[keras.Operation] = []
    for operation in operations:
        is_layer = isinstance(operation, keras.layers.Layer)
        found += layers_in(operation) if is_layer else [operation]
    return all(map(reads_known_variables, found))


@dataclass(frozen=True, eq=False)
class _Context:
    """The values that a part of the model runs on, and the options that it runs with.

    The part is the whole model or the inside of a section. ``partitions`` has what was traced of
    the model, ``without_gradient`` the values whose gradient is not computed.
    """

    values: Values
    partitions: PartitionCache
    levels: int = 1
    without_gradient: Collection[Key] = ()
    keeps_results: bool = True

    @property
    def policy(self) -> Policy:
        """What sections keep that are recomputed."""
        return save_replay_sources if self.keeps_results else save_nothing

    @functools.cached_property
    def batch(self) -> Dimension:
        """The first dimension of the first value that has one."""
        for value in self.values.values():
            if value.shape.rank:
                return dimensions(value)[0]
        return 1


def _with_inner_steps(
    steps: Sequence[Section | SectionLoop], known: Fingerprints
) -> list[Section | SectionLoop]:
    return [replace(step, inner_steps=inner_loops(step.graph, known)) for step in steps]


def _run_calls(step: Section | SectionLoop, context: _Context, name: str) -> None:
    """Run what a step does as it stands, but for the loops inside."""
    if not step.inner_steps:
        for call in step.calls:
            call.run(context.values)
        return
    for part in step.inner_steps:
        if isinstance(part, SectionLoop):
            _run_loop(part, context, name)
        else:
            _run_calls(part, context, name)


def _run_section(section: Section, context: _Context, name: str, policy: Policy | None) -> None:
    arguments, masked = append_masks(list(map(context.values.__getitem__, section.inputs)))
    signature = tensor_specs(arguments)
    # What crosses to a later section is kept by the model, so the backward pass may use it too.
    kept_by_caller = section.kept_by_caller
    gradient_unused = tuple(
        number for number, key in enumerate(section.inputs) if key in context.without_gradient
    )
    key = tuple(signature), masked, tuple(kept_by_caller), policy, gradient_unused

    def build() -> tuple[Partition, SideOutputs]:
        return _partition(
            section,
            signature,
            masked,
            kept_by_caller,
            policy,
            name,
            gradient_unused,
            context.partitions,
        )

    part, side_outputs = context.partitions.get(section, key, build)
    results = lower(part, arguments, name=name)
    context.values.update(zip(section.outputs, side_outputs.reattach(results)))


def _run_loop(loop: SectionLoop, context: _Context, name: str) -> None:
    arguments, masked = append_masks(list(map(context.values.__getitem__, loop.arguments)))
    if not masked and _run_as_loop(loop, arguments, context, name):
        return
    for number, section in enumerate(loop.sections):
        if loop.recomputed:
            _run_section(section, context, f"{name}.{number}", context.policy)
        else:
            _run_calls(section, context, name)
    for request, keys in zip(loop.requests, loop.results):
        if isinstance(request, StackedOutput) and request.axis is not None:
            context.values[keys[0][0]] = tf.concat(
                [context.values[key] for key, *_ in keys], request.axis
            )


def _run_as_loop(
    loop: SectionLoop, arguments: Sequence[tf.Tensor], context: _Context, name: str
) -> bool:
    """Run equal sections as one loop, and return whether that can be done."""
    is_chain = any(isinstance(role, Carry) for role in loop.roles)
    paths = GradientPaths(len(loop.sections), is_chain=is_chain)
    weights = paths.stack(weights_of(loop.isomorphic), name)
    arguments = [*arguments, *weights]
    # Each section takes its slice of a stack.
    roles_of_weights = [Scanned(axis=0, start=0, length=1)] * len(weights)
    roles = (*loop.roles, *roles_of_weights)
    signature = list(map(section_spec, arguments, roles))
    stored: set[int] = set()
    # What one section hands to the next is trained if anything is.
    unused = []
    for number, (value, role) in enumerate(zip(loop.arguments, loop.roles)):
        if isinstance(role, Carry):
            stored.add(role.output)
        elif value in context.without_gradient:
            unused.append(number)
    if context.keeps_results:
        for request in loop.requests:
            if isinstance(request, StackedOutput):
                stored.add(request.output)
    kept_by_caller = sorted(stored)
    gradient_unused = tuple(unused)
    policy = context.policy if loop.recomputed else None
    key = tuple(signature), tuple(kept_by_caller), policy, gradient_unused

    def build() -> tuple[Partition, SideOutputs]:
        return _partition(
            loop, signature, (), kept_by_caller, policy, name, gradient_unused, context.partitions
        )

    part, side_outputs = context.partitions.get(loop, key, build)
    # Masks and losses of sections cannot leave a loop.
    if side_outputs or not can_scan(part, roles):
        return False
    # The gradient of a stack is dense, where each of the weights may have a sparse one.
    first = len(loop.roles)
    stacked = part.joint.trace.ports[first : first + len(weights)]
    if any(map(is_gathered, itertools.chain(*stacked))):
        return False
    counts = equal_groups(len(loop.sections), context.levels)
    results = nested_scan(
        part,
        arguments,
        counts=counts,
        roles=roles,
        requests=loop.requests,
        batch=context.batch,
        name=name,
    )
    for request, keys, result in zip(loop.requests, loop.results, results):
        if isinstance(request, StackedOutput) and request.axis is None:
            values = paths.unstack(result, name) if weights else tf.unstack(result)
        else:
            values = paths.whole(result, name) if weights else [result]
        for known_as, value in zip(keys, values):
            context.values.update(dict.fromkeys(known_as, value))
    return True


def _partition(
    step: Section | SectionLoop,
    signature: Sequence[tf.TensorSpec],
    masked: Sequence[int],
    kept_by_caller: Sequence[int],
    policy: Policy | None,
    name: str,
    gradient_unused: Sequence[int],
    partitions: PartitionCache,
) -> tuple[Partition, SideOutputs]:
    """Trace ``step`` as a function of its inputs and their masks, and return its partition.

    The function returns the outputs of the step, then its side outputs. With isomorphic layers it
    takes their weights in place of masks, and serves all of them. No gradient is expected for the
    inputs whose numbers are ``gradient_unused``.
    """
    graph, isomorphic = step.graph, step.isomorphic if isinstance(step, SectionLoop) else ()
    side_outputs = SideOutputs(graph.calls)

    def section(*tensors: tf.Tensor) -> list[tf.Tensor]:
        values: Values = dict(zip(graph.inputs, tensors))
        extra = tensors[len(graph.inputs) :]
        attach_masks(tensors, masked, extra)

        def run() -> list[tf.Tensor]:
            with substituted_weights(isomorphic, extra) if isomorphic else contextlib.nullcontext():
                _run_calls(step, _Context(values, partitions), name)
            return list(map(values.__getitem__, graph.outputs))

        return side_outputs.collect(run)

    with sharing_changes(isomorphic):
        part = build(
            trace(section, signature, target_now()),
            policy,
            name=name,
            owners=operations_of(graph.calls),
            kept_by_caller=kept_by_caller,
            gradient_unused=gradient_unused,
        )
    return part, side_outputs
