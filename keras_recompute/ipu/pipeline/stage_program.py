"""A pipeline stage as two programs, forward and backward, and the values kept in between.

The inputs of a stage are the outputs of the previous stage, and the microbatch's data where the
model reads it. Its outputs are the values that later stages read. The last stage returns the loss
instead, and updates the metrics. Keras's masks and added losses are passed on like values. The
engine traces, differentiates and partitions a stage. The recomputation mode decides what is saved
(Graphcore: pipelined training):

* nothing is recomputed: every value that the backward pass reads is saved;
* RecomputeThenBackpropagate: only the results of stateful operations are saved, except in the last
  stage, which saves everything;
* RecomputeAndBackpropagateInterleaved: the sections between checkpoints recompute themselves (see
  ``models.execute``), and what they keep is saved.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ...engine import Partition, Trace, build, target_now, trace
from ...engine.graph import alias_source, densify, tensor_refs, tensor_specs
from ...engine.policies import Policy, save_nothing
from ...errors import UnsupportedError

_MICROBATCH = "microbatch"


@dataclass(frozen=True)
class SaveTensors:
    """Save every residual except data, TensorFlow's lists, and values known at compile time.

    The microbatch's data is read again from its source. The lists of TensorFlow's own loops do not
    fit into a ring, and are recomputed. Numbers that are known at compile time, above all shapes,
    are recomputed because XLA would no longer know them once they were stored.
    """

    def __call__(self, value: tf.Tensor) -> bool:
        if value.dtype in (tf.variant, tf.resource) or _is_known(value):
            return False
        return not alias_source(value).op.name.startswith(f"{_MICROBATCH}/")


def _is_known(value: tf.Tensor) -> bool:
    """Return whether ``value`` depends only on constants and static shapes."""
    if value.op.type == "Const":
        return True
    if value.op.type in ("Shape", "ShapeN", "Size"):
        return all(t.shape.is_fully_defined() for t in value.op.inputs)
    has_inputs = len(value.op.inputs) > 0
    return value.dtype.is_integer and has_inputs and all(map(_is_known, value.op.inputs))


save_tensors = SaveTensors()

# Maps the received tensors and the microbatch's data to the stage's outputs.
Work = Callable[[list[tf.Tensor], Any], Sequence[tf.Tensor]]


@dataclass(frozen=True, eq=False)
class StageProgram:
    """A partitioned stage.

    Its arguments are the received tensors, the leaves of the whole feed, and the microbatch's
    number. ``kept_received`` and ``kept_data`` are the indices of the received tensors and data
    leaves that its backward pass reads.
    """

    part: Partition
    received: int
    leaves: int
    kept_received: tuple[int, ...]
    kept_data: tuple[int, ...]

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The variables whose gradients ``backward`` returns, after those of received tensors."""
        first = self.received + self.leaves + 1
        variables = enumerate(self.part.joint.trace.variables, first)
        return tuple(v for port, v in variables if self._gradient(port) is not None)

    @property
    def received_gradients(self) -> tuple[bool, ...]:
        """Whether the backward pass returns a gradient, for each received tensor."""
        return tuple(self._gradient(n) is not None for n in range(self.received))

    @property
    def gradients(self) -> tuple[tf.TensorSpec, ...]:
        """The specs of the gradients that the previous stage gets.

        They belong to the received tensors that have one.
        """
        ports = self.part.joint.trace.arguments
        return _specs(itertools.compress(ports, self.received_gradients))

    @property
    def outputs(self) -> tuple[tf.TensorSpec, ...]:
        """The specs of the stage's outputs."""
        return _specs(self.part.joint.trace.outputs)

    def kept(self, *, with_data: bool) -> tuple[tf.TensorSpec, ...]:
        """Return the specs of what the backward pass needs of a microbatch.

        They are received tensors, data and saved values. Without a ring the data need not be kept:
        it is read again from the feed.
        """
        ports = self.part.joint.trace.arguments
        kept: list[Any] = list(map(ports.__getitem__, self.kept_received))
        for n in self.kept_data if with_data else ():
            leaf = ports[self.received + n]
            kept.append(tf.TensorSpec(leaf.shape[1:], leaf.dtype))
        return _specs([*kept, *self.part.saved])

    def _gradient(self, port: int) -> tf.Tensor | None:
        """Return the gradient of a port, or None."""
        gradients = self.part.joint.gradients
        return gradients[port] if port < len(gradients) else None

    @property
    def distinct(self) -> tuple[tf.TensorSpec, ...]:
        """The specs of the forward pass's results.

        A value that is both an output and saved is listed once.
        """
        made = self.part.forward.outputs
        return _specs(map(made.__getitem__, self._first_copies))

    def forward(
        self, received: Sequence[tf.Tensor], feed: Sequence[tf.Tensor], number: tf.Tensor
    ) -> list[tf.Tensor]:
        """Emit the forward pass over microbatch ``number``; return the ``distinct`` tensors."""
        made = self.part.forward.write(self._values([*received, *feed, number]))
        return list(map(made.__getitem__, self._first_copies))

    def outputs_and_saved(
        self, distinct: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the outputs and the saved values, given the results of ``forward``."""
        origins = self._origins
        by_origin = dict(zip(dict.fromkeys(origins), distinct))
        all_made = list(map(by_origin.__getitem__, origins))
        n = len(self.part.joint.trace.outputs)
        return all_made[:n], all_made[n:]

    @property
    def _origins(self) -> list[Any]:
        """For each result of the forward program, the value that it is a copy of."""
        return [alias_source(t).ref() for t in self.part.forward.outputs]

    @property
    def _first_copies(self) -> list[int]:
        """The indices of the forward program's distinct results."""
        origins = self._origins
        return list(map(origins.index, dict.fromkeys(origins)))

    def backward(
        self,
        received: Sequence[tf.Tensor],
        feed: Sequence[tf.Tensor],
        number: tf.Tensor,
        saved: Sequence[tf.Tensor],
        incoming: Sequence[tf.Tensor | None],
    ) -> tuple[list[tf.Tensor | None], list[tf.Tensor]]:
        """Emit the backward pass; return the gradients of received tensors and of ``variables``.

        ``received`` and ``feed`` may hold None for values that are not kept, and ``incoming`` for
        outputs that no stage reads.
        """
        ports = self.part.joint.trace.arguments
        arguments: list[tf.Tensor] = []
        for value, port in zip([*received, *feed, number], ports):
            if value is not None:
                arguments.append(value)
            else:  # no operation reads it
                arguments.append(tf.zeros([d or 1 for d in port.shape], port.dtype))
        gradients = []
        for given, wanted in zip(incoming, self.part.joint.output_gradients):
            if wanted is not None:
                gradients.append(tf.zeros(wanted.shape, wanted.dtype) if given is None else given)
        found = self.part.backpropagate([*self._values(arguments), *saved, *gradients])
        # They are summed over microbatches. Keras's optimizers make such sums dense too.
        by_port = [None if g is None else densify(g) for g in found]
        n = self.received
        return by_port[:n], [g for g in by_port[n:] if g is not None]

    def _values(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the values of all ports for ``arguments``."""
        return self.part.joint.trace.values(arguments)


def forward_only(work: Work, received: Sequence[tf.TensorSpec], data: Any) -> StageProgram:
    """Trace ``work`` for inference, without a backward pass and saved values.

    Arguments are as for ``stage_program``.
    """
    part = build(_traced(work, received, data), save_nothing, wanted=())
    return StageProgram(part, len(received), len(tf.nest.flatten(data)), (), ())


def stage_program(
    work: Work, received: Sequence[tf.TensorSpec], data: Any, *, policy: Policy
) -> StageProgram:
    """Trace ``work`` and partition it by ``policy``.

    ``data`` is the nest of the specs of one microbatch. Raises UnsupportedError if a value that
    must be kept has no static shape.
    """
    leaves = tf.nest.flatten(data)
    traced = _traced(work, received, data)
    # The data needs no gradient.
    first_weight, ports = len(received) + len(leaves) + 1, len(traced.differentiable)
    trained = {*range(len(received)), *range(first_weight, ports)}
    part = build(traced, policy, wanted=trained)
    for value in (*part.joint.trace.outputs, *part.saved):
        if value.dtype == tf.variant or not value.shape.is_fully_defined():
            raise UnsupportedError(
                f"{value.name!r} ({value.dtype.name}{value.shape}) passes between the stages of a "
                "pipeline, so its shape must be known. Give the model's inputs a batch size, and "
                "every other dimension a number"
            )
    read = part.read_by_backward
    first, end = len(received), len(received) + len(leaves)
    kept_received = _read_ports(part.joint.trace.ports[:first], read)
    kept_data = _read_ports(part.joint.trace.ports[first:end], read)
    return StageProgram(part, len(received), len(leaves), kept_received, kept_data)


def _traced(work: Work, received: Sequence[tf.TensorSpec], data: Any) -> Trace:
    """Trace ``work`` as a function of received tensors, feed and microbatch number."""
    wholes = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in tf.nest.flatten(data)]

    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        given, feed, number = tensors[: len(received)], tensors[len(received) : -1], tensors[-1]
        with tf.name_scope(_MICROBATCH):
            parts = [whole[number] for whole in feed]
        return list(work(list(given), tf.nest.pack_sequence_as(data, parts)))

    return trace(stage, [*received, *wholes, tf.TensorSpec((), tf.int32)], target_now())


def _specs(tensors: Iterable[Any]) -> tuple[tf.TensorSpec, ...]:
    """Return the shapes and types of ``tensors``."""
    return tuple(tensor_specs(tensors))


def _read_ports(ports: Sequence[Sequence[tf.Tensor]], read: set[Any]) -> tuple[int, ...]:
    """Return the numbers of the ``ports`` that have a tensor in ``read``."""
    numbers = enumerate(ports)
    return tuple(n for n, port in numbers if not read.isdisjoint(tensor_refs(port)))


class StageScope(keras.layers.Layer):
    """Calls a function as a Keras layer, so that the layers inside get ``training``."""

    def __init__(self, function: Callable[[], Any], name: str) -> None:
        super().__init__(name=name)
        self._function = function
        self._convert_input_args = False
        self.built = True

    def call(self, training: bool = False) -> Any:
        """Return the function's result."""
        # Keras stores it in the context of the call, where the layers find it.
        del training
        return self._function()
