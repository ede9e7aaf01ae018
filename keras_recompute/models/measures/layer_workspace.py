"""Memory of one layer, read from the program that XLA compiles for the layer alone.

XLA copies images and gradients to bring convolutions into another form, searches arrays for what
pooling chose, and so on. How much memory that takes depends on the kind, the shapes and the version
of the compiler. It also depends on whether the operations stand in a section, where some are
written otherwise (``engine.passes``). A layer with many operations keeps fewer arrays than its
trace has, where XLA fuses further than the trace shows. It keeps more where XLA computes early what
only the backward pass reads. So both programs are compiled: a section's, and the plain model's.

In a model, everything behind a layer runs between its forward and its backward pass. The probe puts
a turn there: a number that depends on all results, and the gradient of the results depends on it.
The memory in use at the turn is what the forward pass hands on to the backward pass. The gradient
comes out of a product, as it does behind a layer: an array of its own, not a part of the first
kernel of the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import tensorflow as tf

from ...engine import Trace, build, lower, target_now, trace
from ...engine.graph import CONVOLUTIONS, tensor_specs
from ...engine.policies import save_nothing
from ...layers.time_sections import section_recurrent_layers
from ...liveness import Program
from ...liveness.program import RESULT, TEMPORARY, Buffer, held_per_step
from ...liveness.tensorflow_functions import compile_step
from ...op_names import FORWARD, RECOMPUTE

# Kinds of operations that take storage beside that of their tensors.
_TOLD_BY_THEIR_PROGRAM = (
    *CONVOLUTIONS,
    *("AvgPool", "AvgPool3D", "GatherV2", "MaxPool", "MaxPool3D"),
    *("ResizeBilinear", "ResourceGather", "Softmax"),
)
_TURN = "layer_turn"
# Elements that are mixed by the product at the turn; few, so that it is small.
_MIXED = 64


@dataclass(frozen=True)
class Workspace:
    """What one pass forward and backward of a layer holds, in bytes.

    Attributes:
        handed_on_bytes: Held between the two: made by the forward pass, for the backward pass.
        forward_bytes: Held at most in the forward pass beyond that, results included.
        backward_bytes: The same of the backward pass, with the gradients of results and inputs.
        copied_inputs: Numbers of the inputs that are handed on as a copy in another layout. The
            backward pass reads that, and not the input.
    """

    handed_on_bytes: int
    forward_bytes: int
    backward_bytes: int
    copied_inputs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Workspaces:
    """What a layer holds in a section, and in a model without checkpoints."""

    section: Workspace
    plain: Workspace


def workspaces_of(
    layer: Callable[..., Any],
    traced: Trace,
    signature: Sequence[tf.TensorSpec],
    *,
    is_cut: bool = False,
) -> Workspaces | None:
    """Return what ``layer``, a function of tensors like ``signature``, holds by its programs.

    ``traced`` is its trace, of a section where the layer ``is_cut`` along time. None where its
    tensors say all there is to say.
    """
    kinds = {op.type for op in traced.graph.get_operations()}
    results = tensor_specs(_floating(traced.outputs))
    if (kinds.isdisjoint(_TOLD_BY_THEIR_PROGRAM) and not is_cut) or not results:
        return None
    mixers = []
    for spec in results:
        size = math.gcd(spec.shape.num_elements() or 1, _MIXED)
        mixers.append(tf.TensorSpec((size, size), spec.dtype))
    given = [*signature, *mixers]
    weights = [v for v in traced.variables if v.trainable]

    def turned(*tensors: tf.Tensor) -> list[tf.Tensor]:
        outputs = layer(*tensors[: len(signature)])
        return _turn(_floating(outputs), tensors[len(signature) :])

    def section(*tensors: tf.Tensor) -> list[tf.Tensor]:
        part = build(trace(turned, given, target_now()), save_nothing)
        return lower(part, list(tensors), name="workspace")

    def measured(called: Callable[..., Any]) -> Workspace:
        step = _step_of(called, given, weights, inputs=len(signature))
        return _read(compile_step(step, [*given, *results]), signature)

    with section_recurrent_layers():
        in_section = measured(section)
    return Workspaces(section=in_section, plain=measured(turned))


def _turn(results: Sequence[tf.Tensor], mixers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return what depends on ``results`` by a product with ``mixers`` and a number made of all."""
    with tf.name_scope(_TURN):
        # Their gradient would read the results.
        mixers = list(map(tf.stop_gradient, mixers))
        total = tf.add_n([tf.cast(tf.reduce_sum(y), tf.float32) for y in results])
        # A second sum whose terms all need the first: what made the results is done.
        turns = []
        for mixer in mixers:
            turns.append(tf.reduce_sum(tf.maximum(mixer, tf.cast(total, mixer.dtype))))
        turn = tf.stop_gradient(tf.add_n([tf.cast(t, tf.float32) for t in turns]))
        products = []
        for result, mixer in zip(results, mixers):
            rows = tf.reshape(result, (-1, mixer.shape[0]))
            products.append(tf.matmul(rows, mixer + tf.cast(turn, mixer.dtype)))
        return products


def _step_of(
    called: Callable[..., Any],
    given: Sequence[tf.TensorSpec],
    weights: Sequence[Any],
    *,
    inputs: int,
) -> Callable[..., Any]:
    """Return the gradients of ``called`` as a function of what is ``given`` and of gradients."""

    def step(*tensors: tf.Tensor) -> Any:  # XLA knows them as "tensors_0" and so on
        arguments, gradients = tensors[: len(given)], tensors[len(given) :]
        differentiable = _floating(arguments[:inputs])
        with tf.GradientTape() as tape:
            tape.watch(differentiable)
            results = called(*arguments)
        shaped = [tf.reshape(g, y.shape) for g, y in zip(gradients, results)]
        return tape.gradient(results, [*differentiable, *weights], output_gradients=shaped)

    return step


def _read(program: Program, signature: Sequence[tf.TensorSpec]) -> Workspace:
    """Return what the ``program`` of the probe holds before, at and after the turn.

    ``signature`` are the inputs of the layer. Among the results only their gradients are counted:
    those of weights are counted elsewhere.
    """
    input_bytes = _floating_bytes(signature)
    names = [f"tensors_{number}" for number in range(len(signature))]
    copied: set[int] = set()
    count = program.program_steps
    turns = [n for n, step in enumerate(program.steps) if _TURN in (step.op_name or "")]
    # At the last of these steps the gradient is made: it counts as one of the backward pass.
    last = turns[-1]
    own, gradients = [], []
    handed_on = 0
    for buffer in program.buffers:
        if _is_of_turn(buffer):
            if buffer.last_step > last:
                gradients.append(buffer)
            continue
        own.append(buffer)
        is_made_before = buffer.phase in (FORWARD, RECOMPUTE) and buffer.is_live_at(last)
        if is_made_before and buffer.lifetime in (TEMPORARY, RESULT):
            handed_on += buffer.size_bytes
            # XLA names a copy in another layout after what it copies.
            if buffer.op_name in names:
                copied.add(names.index(buffer.op_name))
    temporary = held_per_step(own, (TEMPORARY,), count)
    results = held_per_step(own, (RESULT,), count)
    held = [t + min(r, input_bytes) for t, r in zip(temporary, results)]
    with_gradients = held_per_step(gradients, (TEMPORARY, RESULT), count)
    backward = max(map(add, held[last:], with_gradients[last:]))
    return Workspace(
        handed_on_bytes=handed_on,
        forward_bytes=max(0, max(held[: last + 1]) - handed_on),
        backward_bytes=max(0, backward - handed_on),
        copied_inputs=frozenset(copied),
    )


def _is_of_turn(buffer: Buffer) -> bool:
    return _TURN in (buffer.op_name or "")


def _floating(values: Sequence[Any]) -> list[Any]:
    """Return the tensors or specs among ``values`` that gradients flow through."""
    return [value for value in values if value.dtype.is_floating]


def _floating_bytes(specs: Sequence[tf.TensorSpec]) -> int:
    size = 0
    for spec in _floating(specs):
        size += (spec.shape.num_elements() or 0) * spec.dtype.size
    return size
