"""The time loop of Keras's recurrent layers in about sqrt(T) sections, recomputed one by one.

Keras keeps what each step computes until the backward pass. Here one state per section is kept, and
the backward pass recomputes the steps of one section after the other. Of T steps, about ``sqrt(T)``
states and ``sqrt(T)`` steps are in memory, and each step runs forward twice.

A step is traced once, whatever the cell is. It becomes the body of a loop over the steps of a
section, which stores the residuals of its gradient. That loop becomes the body of a loop over
sections. Weights and dropout masks are read from outside of both loops.

Sources: Chen et al. 2016, arXiv:1604.06174, section 4.1; Gruslys et al. 2016, arXiv:1606.03401, for
sections in time, which there too lie between two stored states.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ..engine import Partition, Trace, build, in_vectorized_map, target_now, trace
from ..engine.graph import zeros
from ..engine.policies import Policy, save_nothing
from ..engine.scan import (
    Carry,
    Dimension,
    FinalOutput,
    Request,
    Role,
    Scanned,
    StackedOutput,
    can_scan,
    dimensions,
    scan_sections,
    section_spec,
)
from .time_loops import LoopOptions, cut_time_loops, sqrt_sections, warn_uncut


@dataclass(frozen=True)
class Cut:
    """A call of a recurrent layer divided in time: its number of steps, and one traced step."""

    step: Trace
    steps: int


@contextlib.contextmanager
def section_recurrent_layers() -> Iterator[list[Cut]]:
    """Make Keras's recurrent layers keep one state per section of time; gives the calls so far."""
    cuts: list[Cut] = []
    with cut_time_loops(functools.partial(_cut, cuts), where=_is_traced):
        yield cuts


def _is_traced() -> bool:
    return not tf.executing_eagerly() and not in_vectorized_map()


def _cut(
    cuts: list[Cut],
    _: Callable[..., Any],
    layer: keras.layers.RNN,
    step_function: Callable[..., Any],
    inputs: tf.Tensor,
    initial_states: Sequence[Any],
    options: LoopOptions,
) -> Any:
    return _Recurrence(layer, step_function, inputs, initial_states, options).run(cuts)


class _Recurrence:
    """One call of a recurrent layer, as a function of flat tensors.

    A step takes the states, then the previous output where masked steps repeat it, then its input
    and its mask, each with a time axis of one step. It returns the states, the outputs, and the
    outputs once more with a time axis if those of all steps are returned.
    """

    def __init__(
        self,
        layer: keras.layers.RNN,
        step_function: Callable[..., Any],
        inputs: tf.Tensor,
        initial_states: Sequence[Any],
        options: LoopOptions,
    ) -> None:
        self._layer, self._step_function, self._options = layer, step_function, options
        self._structure = tuple(initial_states)
        # A stateful layer passes variables.
        self._states = list(map(tf.convert_to_tensor, keras.tree.flatten(initial_states)))
        self._steps = inputs.shape[1]
        self._batch = dimensions(inputs)[0]
        self._sequences = [inputs]
        if options.mask is not None:
            mask = tf.cast(options.mask, tf.bool)
            self._sequences.append(mask[..., None] if mask.shape.rank == 2 else mask)
        if options.go_backwards:
            self._sequences = [tf.reverse(each, axis=[1]) for each in self._sequences]

    def run(self, cuts: list[Cut]) -> tuple[Any, Any, Any] | None:
        """Return last output, all outputs and last states, as Keras does, and record the cut.

        None if a loop cannot run the steps.
        """
        self._output_specs = keras.tree.map_structure(_spec, self._first_output())
        self._outputs = len(keras.tree.flatten(self._output_specs))
        carried = [*self._states, *self._before()]
        self._carried = len(carried)
        step = self._partition(self._step, self._specs(carried, 1), None, range(self._carried))
        if not can_scan(step, self._roles(0, 1)):
            return None
        lengths = sqrt_sections(self._steps)
        if not all(map(step.joint.trace.purity.is_pure, step.joint.trace.graph.get_operations())):
            warn_uncut(
                self._layer, "its cell draws random numbers or changes variables at each step"
            )
            # Keras runs each step once, and has run none yet.
            if self._options.unroll:
                return None
            lengths = [(1, self._steps)]

        cuts.append(Cut(step.joint.trace, self._steps))
        joined: list[list[tf.Tensor]] = []
        begin = 0
        for count, length in lengths:
            results = self._sections(step, carried, begin, count, length)
            carried = results[: self._carried]
            last = results[len(self._states) :][: self._outputs]
            joined.append(results[len(self._states) + self._outputs :])
            begin += count * length
        whole = [tf.concat(parts, axis=1) if len(parts) > 1 else parts[0] for parts in zip(*joined)]
        return (
            keras.tree.pack_sequence_as(self._output_specs, last),
            keras.tree.pack_sequence_as(self._output_specs, whole or _with_time(last)),
            keras.tree.pack_sequence_as(self._structure, carried[: len(self._states)]),
        )

    def _first_output(self) -> Any:
        """Return the structure and shapes of a step's output."""
        first = self._sequences[0][:, 0]
        if not self._options.unroll:
            # Keras too runs a step before its loop; a cell that draws random numbers then draws
            # the same.
            return self._call(first, self._states)[0]
        signature = list(map(_spec, (first, *self._states)))
        traced = trace(lambda x, *states: self._call(x, states)[0], signature, target_now())
        return traced.structure

    def _before(self) -> list[tf.Tensor]:
        """Return the outputs that masked steps at the beginning repeat."""
        if self._options.mask is None or self._options.zero_output_for_mask:
            return []
        specs = keras.tree.flatten(self._output_specs)
        return [zeros(self._shape(spec), spec.dtype, target_now()) for spec in specs]

    def _shape(self, spec: tf.TensorSpec) -> list[Dimension]:
        return [self._batch if d is None else d for d in spec.shape]

    def _sections(
        self,
        step: Partition,
        carried: Sequence[tf.Tensor],
        begin: int,
        count: int,
        length: int,
    ) -> list[tf.Tensor]:
        """Run ``count`` sections of ``length`` steps each, from step ``begin`` on."""
        requests = self._requests()

        def section(*tensors: tf.Tensor) -> list[tf.Tensor]:
            if self._options.unroll:
                return self._unrolled(tensors, length)
            roles = self._roles(0, 1)
            return self._loop(step, tensors, count=length, roles=roles, requests=requests)

        arguments, roles = [*carried, *self._sequences], self._roles(begin, length)
        # A loop of one trip would only add its overhead.
        if count == 1:
            return section(*carried, *_slices(self._sequences, begin, length))
        part = self._partition(section, self._specs(carried, length), save_nothing)
        options = {"count": count, "roles": roles, "requests": requests}
        return self._loop(part, arguments, **options, keeps_states=True)

    def _loop(self, part: Partition, arguments: Any, **options: Any) -> list[tf.Tensor]:
        return scan_sections(part, arguments, batch=self._batch, name=self._name, **options)

    def _unrolled(self, tensors: Sequence[tf.Tensor], length: int) -> list[tf.Tensor]:
        carried, sequences = tensors[: self._carried], tensors[self._carried :]
        joined = []
        for t in range(length):
            results = self._step(*carried, *_slices(sequences, t, 1))
            carried = results[: self._carried]
            joined.append(results[len(self._states) + self._outputs :])
        whole = [tf.concat(parts, axis=1) for parts in zip(*joined)]
        return [*results[: len(self._states) + self._outputs], *whole]

    def _step(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        states, before = tensors[: len(self._states)], tensors[len(self._states) : self._carried]
        x, *masks = (tf.squeeze(each, axis=1) for each in tensors[self._carried :])
        output, new_states = self._call(x, states)
        outputs, new_states = keras.tree.flatten(output), keras.tree.flatten(new_states)
        for mask in masks:
            instead = before or list(map(tf.zeros_like, outputs))
            choose = functools.partial(_where, mask)
            outputs = list(map(choose, outputs, instead))
            new_states = list(map(choose, new_states, states))
        with_time = _with_time(outputs) if self._options.return_all_outputs else []
        return [*new_states, *outputs, *with_time]

    def _call(self, x: tf.Tensor, states: Sequence[tf.Tensor]) -> tuple[Any, Any]:
        packed = keras.tree.pack_sequence_as(self._structure, list(states))
        return self._step_function(x, (*packed, *(self._options.constants or ())))

    def _partition(
        self,
        function: Callable[..., Any],
        signature: Sequence[tf.TensorSpec],
        policy: Policy | None,
        kept_by_caller: Sequence[int] = (),
    ) -> Partition:
        traced = trace(function, signature, target_now())
        return build(
            traced, policy, name=self._name, owners=[self._layer], kept_by_caller=kept_by_caller
        )

    def _specs(self, carried: Sequence[tf.Tensor], length: int) -> list[tf.TensorSpec]:
        arguments = [*carried, *self._sequences]
        return list(map(section_spec, arguments, self._roles(0, length)))

    def _roles(self, begin: int, length: int) -> list[Role]:
        sliced = Scanned(axis=1, start=begin, length=length)
        roles: list[Role] = list(map(Carry, range(self._carried)))
        return roles + [sliced] * len(self._sequences)

    def _requests(self) -> list[Request]:
        alone = len(self._states) + self._outputs
        requests: list[Request] = list(map(FinalOutput, range(alone)))
        if self._options.return_all_outputs:
            for number in range(self._outputs):
                requests.append(StackedOutput(alone + number, axis=1))
        return requests

    @property
    def _name(self) -> str:
        return re.sub(r"[^A-Za-z0-9_.-]", "_", self._layer.name)


def _spec(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _slices(sequences: Sequence[tf.Tensor], begin: int, length: int) -> list[tf.Tensor]:
    return [sequence[:, begin : begin + length] for sequence in sequences]


def _with_time(outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return ``outputs`` of one step, ``(batch, size)``, as ``(batch, 1, size)``."""
    return [output[:, None] for output in outputs]


def _where(mask: tf.Tensor, chosen: tf.Tensor, instead: tf.Tensor) -> tf.Tensor:
    """Return ``chosen`` where ``mask``, ``(batch, 1)``, is True, else ``instead``."""
    for _ in range(chosen.shape.rank - mask.shape.rank):
        mask = mask[..., None]
    return tf.where(mask, chosen, instead)
