"""Memory and cost of one layer, measured from the program that it traces to.

A layer is traced with its gradient (``engine.joint_graph``). What its backward pass reads of its
forward pass is classified as XLA does when it fuses. That was seen in compiled programs, on a CPU,
with TensorFlow 2.21:

* An operand of a matrix product is an array. It stays until the product of the backward pass has
  read it.
* Anything else is computed again within the kernel that reads it, from arrays: inputs of the layer,
  and results of operations that are too dear to repeat (see ``engine.op_sets.CHEAP``).
  These arrays stay.
* In a section fewer arrays stay, as the engine's own policy decides (``engine.passes.min_cut``). Of
  a gelu it keeps the product alone, where XLA keeps what follows from it as well.

Convolutions, pooling, softmax and gathers take storage while they run that is not in their tensors.
It is read from the compiled program of the layer alone (``layer_workspace``), together with how
much the program keeps of the above.

The cost is counted in operations: two for each multiplication and addition of a product or
convolution, one for each element of everything else. Or it is timed. Loops count once, so layers
with loops inside are better timed. Layers that are cut along time are an exception: their steps are
counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar

import tensorflow as tf

from ...engine import Trace, build, target_now, trace
from ...engine.graph import (
    CHEAP,
    CONVOLUTIONS,
    ELEMENTWISE,
    MATMULS,
    SHAPES,
    SOURCES,
    VIEWS,
    alias_source,
    port_refs,
    producers,
    tensor_refs,
)
from ...engine.policies import save_everything
from ...errors import UnsupportedError
from ...graph_traversal import reachable
from ...layers.time_sections import Cut, section_recurrent_layers
from ..keras_graph.call_graph import Call, as_trained, positions_of
from ..keras_graph.fingerprint import Fingerprints, calls_key
from .cost_record import LayerCost, Sources
from .layer_workspace import workspaces_of
from .step_time import least_seconds

_FREE = (*SOURCES, *SHAPES, *VIEWS, "Identity")


class LayerProfiler:
    """Measures calls of layers; equal layers on equal shapes are traced once.

    What was measured of layers of Keras and of this package serves the whole process.
    """

    _known_in_process: ClassVar[dict[Any, LayerCost]] = {}

    def __init__(self, specs: Mapping[Any, tf.TensorSpec], *, timed: bool) -> None:
        self._specs, self._timed = specs, timed
        self._known: dict[Any, LayerCost] = {}
        self._fingerprints = Fingerprints()

    def __call__(self, call: Call) -> LayerCost:
        """Return what ``call`` needs and costs.

        Raises UnsupportedError for a layer that keeps a value of unknown size.
        """
        signature = list(map(self._specs.__getitem__, call.inputs))
        number = positions_of(call.inputs)
        equal_in = calls_key([call], number.__getitem__, self._fingerprints.of)
        key = (equal_in, tuple(signature), self._timed)
        found = self._fingerprints.of(call.operation)
        # What holds an object of the model would keep it; what a user's code does may change.
        known = self._known_in_process if found.is_known and found.is_portable else self._known
        if key not in known:
            known[key] = _layer_cost(call, signature, timed=self._timed)
        return known[key]


def _layer_cost(call: Call, signature: Sequence[tf.TensorSpec], *, timed: bool) -> LayerCost:
    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        values = dict(zip(call.inputs, tensors))
        as_trained(call).run(values)
        return list(map(values.__getitem__, call.outputs))

    traced, cuts = _traced_for_xla(run, signature)
    part = build(traced, save_everything)
    arrays = _Arrays(traced, len(signature), str(call.operation.name))
    multiplied, read = _NeededArrays(), _NeededArrays()
    for operation in part.backward.operations:
        for tensor in part.backward.inputs_of(operation):
            if tensor.op in part.joint.backward or not _is_large(tensor):
                continue
            if operation.type in (*MATMULS, "Einsum"):
                arrays.add_array(tensor, multiplied)
            else:
                arrays.add_sources(tensor, read)
    needs = frozenset(read.outputs | multiplied.outputs)
    # In a section a result that is a function itself is made again as well, as a softplus is,
    # except where the slope reads it, as that of a tanh does: it is kept, as large as what it
    # follows from.
    sources, sources_in_section = [], []
    for n in range(len(traced.outputs)):
        found = found_in_section = arrays.sources_of_output(n, CHEAP)
        if n not in needs or found is not None:
            found_in_section = arrays.sources_of_output(n, CHEAP | ELEMENTWISE)
        sources.append(found)
        sources_in_section.append(found_in_section)
    kept = {**multiplied.kept, **read.kept}
    cut = _NeededArrays()
    for tensor in part.under(None).saved:
        arrays.add_array(tensor, cut)
    kept_in_section = min(kept, cut.kept, key=lambda held: sum(held.values()))
    if timed:
        cost = least_seconds(tf.function(run, autograph=False), signature)
    else:
        cost = _operations_with(traced, cuts)
    return LayerCost(
        kept=kept,
        kept_in_section=kept_in_section,
        reads=frozenset(read.inputs),
        multiplies=frozenset(multiplied.inputs),
        needs=needs,
        sources=tuple(sources),
        sources_in_section=tuple(sources_in_section),
        cost=cost,
        workspaces=workspaces_of(run, traced, signature, is_cut=bool(cuts)),
        is_cut=bool(cuts),
        is_convolution=any(op.type in CONVOLUTIONS for op in traced.graph.get_operations()),
    )


def _traced_for_xla(
    run: Callable[..., Any], signature: Sequence[tf.TensorSpec]
) -> tuple[Trace, list[Cut]]:
    """Return the trace that a section of a compiled step is made of.

    Functions that Keras has XLA compile on their own are written out in it. The second result are
    the recurrent layers that are cut along time.
    """
    found: list[Trace] = []

    @tf.function(jit_compile=True, autograph=False)
    def step() -> None:
        found.append(trace(run, signature, target_now()))

    with section_recurrent_layers() as cuts:
        step.get_concrete_function()
    return found[0], cuts


class _NeededArrays:
    def __init__(self) -> None:
        self.kept: dict[int, int] = {}
        self.inputs: set[int] = set()
        self.outputs: set[int] = set()


class _Arrays:
    """The arrays in the compiled program of one layer: inputs, outputs, and arrays of its own."""

    def __init__(self, traced: Trace, arguments: int, layer: str) -> None:
        self._layer = layer
        self._inputs: dict[Any, int] = {}
        for number, port in enumerate(traced.ports[:arguments]):
            self._inputs.update(dict.fromkeys(tensor_refs(port), number))
        self._weights = port_refs(traced.ports[arguments:])
        self._outputs = {_storage_of(t).ref(): n for n, t in enumerate(traced.outputs)}
        self._results = traced.outputs

    def add_array(self, tensor: tf.Tensor, needs: _NeededArrays) -> None:
        """Add the array that holds ``tensor``, whatever makes it."""
        value = _storage_of(tensor)
        if value.ref() in self._inputs:
            needs.inputs.add(self._inputs[value.ref()])
        elif value.ref() in self._outputs:
            needs.outputs.add(self._outputs[value.ref()])
        elif value.ref() not in self._weights and value.op.type not in SOURCES:
            if value.dtype == tf.variant or value.shape.num_elements() is None:
                raise UnsupportedError(
                    f"layer {self._layer!r} keeps {value.name!r} for its backward pass, and its "
                    "size is known only at run time, as in a tf.while_loop or with cuDNN. Place "
                    "checkpoints yourself by checkpointed(model, at=[...]), or set "
                    "use_cudnn=False"
                )
            needs.kept[id(value)] = value.shape.num_elements() * value.dtype.size

    def sources_of_output(self, number: int, recomputed: Set[str]) -> Sources | None:
        """Return what an output is computed from by operations of the ``recomputed`` kinds.

        None for its own array.
        """
        found = _NeededArrays()
        self.add_sources(self._results[number], found, recomputed)
        return None if number in found.outputs else (found.kept, frozenset(found.inputs))

    def add_sources(
        self, tensor: tf.Tensor, needs: _NeededArrays, recomputed: Set[str] = CHEAP
    ) -> None:
        """Add the arrays that ``tensor`` is computed from by ``recomputed`` kinds of operations."""
        waiting, seen = [tensor], set()
        while waiting:
            value = _storage_of(waiting.pop())
            if value.ref() in seen or not _is_large(value):
                continue
            seen.add(value.ref())
            if value.op.type in recomputed and value.ref() not in self._inputs:
                waiting.extend(value.op.inputs)
            else:
                self.add_array(value, needs)


def _storage_of(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor that owns the array of ``tensor``.

    It is the tensor before copies and before operations that change the shape alone.
    """
    value = alias_source(tensor)
    while value.op.type in VIEWS:
        value = alias_source(value.op.inputs[0])
    return value


def _is_large(tensor: tf.Tensor) -> bool:
    """Whether a tensor can matter: numbers that say shapes and steps do not."""
    return tensor.dtype == tf.variant or tensor.shape.rank != 0


def _operations_with(traced: Trace, cuts: Sequence[Cut]) -> float:
    """Return the number of arithmetic operations of the forward pass.

    All time steps of layers that are cut along time are counted.
    """
    return _operations(traced) + sum(cut.steps * _operations(cut.step) for cut in cuts)


def _operations(traced: Trace) -> float:
    """Return the number of arithmetic operations of the forward pass."""
    makers = reachable([t.op for t in traced.outputs], producers)
    return float(sum(map(_operations_of, makers)))


def _operations_of(operation: tf.Operation) -> int:
    if operation.type in _FREE or not operation.outputs:
        return 0
    elements = operation.outputs[0].shape.num_elements() or 0
    if operation.type == "MatMul":
        rows = operation.inputs[0].shape
        return 2 * elements * int(rows[0] if operation.get_attr("transpose_a") else rows[1])
    if operation.type.startswith("BatchMatMul"):
        rows = operation.inputs[0].shape
        return 2 * elements * int(rows[-2] if operation.get_attr("adj_x") else rows[-1])
    if operation.type == "Einsum":
        labels = operation.get_attr("equation").decode().split("->")[0].split(",")
        sizes: dict[str, int] = {}
        for text, tensor in zip(labels, operation.inputs):
            for label, size in zip(text, tensor.shape):
                if size:
                    sizes[label] = size
        return 2 * math.prod(sizes.values())
    if operation.type in CONVOLUTIONS:
        kernel = operation.inputs[1].shape
        per_output = (
            kernel[:-2].num_elements()
            if operation.type.startswith("Depthwise")
            else kernel[:-1].num_elements()
        )
        return 2 * elements * int(per_output or 0)
    return elements
