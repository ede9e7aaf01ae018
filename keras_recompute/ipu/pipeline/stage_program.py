"""One pipeline stage as two programs, forward and backward, with what the one keeps for the other.

A stage takes what the stage before it hands on, and the microbatch's data where the model reads it; it hands on what
later stages read. The last stage returns the loss instead, and updates the metrics. What Keras passes beside the values
(masks, added losses) is handed on like a value. A stage is traced, joined and partitioned by the engine; its recomputation
mode decides how (Graphcore: pipelined training):

* nothing is recomputed: every value that the backward pass reads is saved;
* RecomputeThenBackpropagate: nothing is saved but the results of stateful operations; the last stage saves everything;
* RecomputeAndBackpropagateInterleaved: the sections between checkpoints recompute themselves (see ``models.execute``),
  and what they keep is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ...engine.joint import Joint, join
from ...engine.marks import original
from ...engine.partition import Partition, partition
from ...engine.passes import target_now
from ...engine.policies import Policy, save_nothing
from ...engine.residuals import read_by_backward
from ...engine.sparse_gradients import dense
from ...engine.trace import Trace, trace
from ...errors import UnsupportedError

_MICROBATCH = "microbatch"


@dataclass(frozen=True)
class SaveTensors:
    """Save every residual except three kinds: the microbatch's data is at hand as such, and is taken again from there; the
    lists that TensorFlow's own loops leave fit in no ring, and are recomputed; and so are numbers that are known when the
    program is compiled, shapes above all, which XLA must know and does not of what was stored."""

    def __call__(self, value: tf.Tensor) -> bool:
        if value.dtype in (tf.variant, tf.resource) or _is_known(value):
            return False
        return not original(value).op.name.startswith(f"{_MICROBATCH}/")


def _is_known(value: tf.Tensor) -> bool:
    """Return whether ``value`` follows from constants and shapes that do not change."""
    if value.op.type == "Const":
        return True
    if value.op.type in ("Shape", "ShapeN", "Size"):
        return all(t.shape.is_fully_defined() for t in value.op.inputs)
    return value.dtype.is_integer and len(value.op.inputs) > 0 and all(_is_known(t) for t in value.op.inputs)


save_tensors = SaveTensors()

# Runs a stage on what it received and the microbatch's data; returns what it hands on.
Work = Callable[[list[tf.Tensor], Any], Sequence[tf.Tensor]]


@dataclass(frozen=True, eq=False)
class StageProgram:
    """A partitioned stage. Its arguments are the tensors received, the leaves of the whole feed, and which microbatch.

    ``kept_received`` and ``kept_data`` are the numbers of the received tensors and data leaves that its backward pass
    reads.
    """

    part: Partition
    received: int
    leaves: int
    kept_received: tuple[int, ...]
    kept_data: tuple[int, ...]

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The variables whose gradient the backward pass returns after those of the received tensors."""
        trace = self.part.joint.trace
        first = self.received + self.leaves + 1
        return tuple(v for n, v in enumerate(trace.variables) if self._gradient(first + n) is not None)

    @property
    def received_gradients(self) -> tuple[bool, ...]:
        """For each received tensor whether the backward pass returns a gradient."""
        return tuple(self._gradient(n) is not None for n in range(self.received))

    @property
    def gradients(self) -> tuple[tf.TensorSpec, ...]:
        """Type and shape of the gradients that go to the stage before: those of received tensors that have one."""
        ports = self.part.joint.trace.arguments
        return tuple(tf.TensorSpec(ports[n].shape, ports[n].dtype) for n in range(self.received) if self.received_gradients[n])

    @property
    def outputs(self) -> tuple[tf.TensorSpec, ...]:
        """Type and shape of what is handed on."""
        return tuple(tf.TensorSpec(t.shape, t.dtype) for t in self.part.joint.trace.outputs)

    def kept(self, *, with_data: bool) -> tuple[tf.TensorSpec, ...]:
        """Return type and shape of what the backward pass needs of a microbatch: received tensors, data, saved values.

        Without a ring the data need not be kept: it is read from the feed once more.
        """
        ports = self.part.joint.trace.arguments
        received = [ports[n] for n in self.kept_received]
        numbers = [self.received + n for n in self.kept_data] if with_data else []
        data = [tf.TensorSpec(ports[n].shape[1:], ports[n].dtype) for n in numbers]
        return tuple(tf.TensorSpec(t.shape, t.dtype) for t in (*received, *data, *self.part.saved))

    def _gradient(self, port: int) -> tf.Tensor | None:
        gradients = self.part.joint.gradients
        return gradients[port] if port < len(gradients) else None

    @property
    def distinct(self) -> tuple[tf.TensorSpec, ...]:
        """Type and shape of what the forward pass makes. What is both handed on and saved is made once."""
        made = self.part.forward.outputs
        return tuple(tf.TensorSpec(made[n].shape, made[n].dtype) for n in self._first_copies)

    def forward(self, received: Sequence[tf.Tensor], feed: Sequence[tf.Tensor], number: tf.Tensor) -> list[tf.Tensor]:
        """Write the forward pass over microbatch ``number``; return the ``distinct`` tensors."""
        made = self.part.forward.write(self._values([*received, *feed, number]))
        return [made[n] for n in self._first_copies]

    def outputs_and_saved(self, distinct: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the outputs and the saved values, given what ``forward`` returned."""
        by_origin = dict(zip((self._origins[n] for n in self._first_copies), distinct))
        all_made = [by_origin[origin] for origin in self._origins]
        n = len(self.part.joint.trace.outputs)
        return all_made[:n], all_made[n:]

    @property
    def _origins(self) -> list[Any]:
        """For each value of the forward program the one that it merely passes on."""
        return [original(t).ref() for t in self.part.forward.outputs]

    @property
    def _first_copies(self) -> list[int]:
        return [n for n, origin in enumerate(self._origins) if origin not in self._origins[:n]]

    def backward(
        self,
        received: Sequence[tf.Tensor],
        feed: Sequence[tf.Tensor],
        number: tf.Tensor,
        saved: Sequence[tf.Tensor],
        incoming: Sequence[tf.Tensor | None],
    ) -> tuple[list[tf.Tensor | None], list[tf.Tensor]]:
        """Write the backward pass; return the gradients of the received tensors and those of ``variables``.

        ``received`` and ``feed`` may hold None where they are not kept, ``incoming`` where nobody read an output.
        """
        ports = self.part.joint.trace.arguments
        arguments = [
            value if value is not None else tf.zeros([d or 1 for d in port.shape], port.dtype)  # read by nobody
            for value, port in zip([*received, *feed, number], ports)
        ]
        gradients = [
            given if given is not None else tf.zeros(wanted.shape, wanted.dtype)
            for given, wanted in zip(incoming, self.part.joint.output_gradients)
            if wanted is not None
        ]
        found = self.part.backpropagate([*self._values(arguments), *saved, *gradients])
        # They are added up over microbatches, by which Keras's optimizers make them dense too.
        by_port = [None if g is None else dense(g) for g in found]
        n = self.received
        return by_port[:n], [g for g in by_port[n:] if g is not None]

    def _values(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self.part.joint.trace.values(arguments)


def forward_only(work: Work, received: Sequence[tf.TensorSpec], data: Any) -> StageProgram:
    """Trace ``work`` as ``stage_program`` does, for inference: there is no backward pass, and nothing is saved."""
    traced = _traced(work, received, data)
    none = (None,) * len(traced.differentiable)
    joint = Joint(traced, (None,) * len(traced.outputs), none, frozenset(), {})
    return StageProgram(partition(joint, save_nothing), len(received), len(tf.nest.flatten(data)), (), ())


def stage_program(work: Work, received: Sequence[tf.TensorSpec], data: Any, *, policy: Policy) -> StageProgram:
    """Trace ``work`` and split it by ``policy``.

    ``data`` is the nest of the specs of one microbatch. Raises UnsupportedError where something that must be kept has a
    shape which is not known.
    """
    leaves = tf.nest.flatten(data)
    joint = join(_traced(work, received, data))
    # The data is not trained.
    trained = {*range(len(received)), *range(len(received) + len(leaves) + 1, len(joint.gradients))}
    part = partition(joint.only(trained), policy)
    for value in (*part.joint.trace.outputs, *part.saved):
        if value.dtype == tf.variant or not value.shape.is_fully_defined():
            raise UnsupportedError(
                f"{value.name!r} ({value.dtype.name}{value.shape}) is handed from pass to pass of a pipeline stage, but only "
                f"tensors of known shape can be: give the model's inputs a batch size and every other dimension a number"
            )
    read = read_by_backward(part)
    kept = [n for n, port in enumerate(part.joint.trace.ports[: len(received) + len(leaves)]) if _is_read(port, read)]
    return StageProgram(
        part,
        received=len(received),
        leaves=len(leaves),
        kept_received=tuple(n for n in kept if n < len(received)),
        kept_data=tuple(n - len(received) for n in kept if n >= len(received)),
    )


def _traced(work: Work, received: Sequence[tf.TensorSpec], data: Any) -> Trace:
    wholes = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in tf.nest.flatten(data)]

    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        given, feed, number = tensors[: len(received)], tensors[len(received) : -1], tensors[-1]
        with tf.name_scope(_MICROBATCH):
            parts = [whole[number] for whole in feed]
        return list(work(list(given), tf.nest.pack_sequence_as(data, parts)))

    return trace(stage, [*received, *wholes, tf.TensorSpec((), tf.int32)], target_now())


def _is_read(port: Sequence[tf.Tensor], read: set[Any]) -> bool:
    return any(t.ref() in read for t in port)


class StageScope(keras.layers.Layer):
    """Calls a function as a Keras layer, so that the layers inside know whether they train."""

    def __init__(self, function: Callable[[], Any], name: str) -> None:
        super().__init__(name=name)
        self._function = function
        self._convert_input_args = False
        self.built = True

    def call(self, training: bool = False) -> Any:
        """Return what the function returns."""
        del training  # Keras notes it in the context of the call
        return self._function()
