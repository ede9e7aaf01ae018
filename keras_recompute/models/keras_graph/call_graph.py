"""The graph of a Keras functional model as data: calls in running order, and values between them.

Keras keeps this graph inside its models. It is read here once. To cut it into sections and to
compare these are then plain functions of plain values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import ml_dtypes  # noqa: F401  # teaches NumPy bfloat16 and the 8-bit types
import numpy as np

from ...layers.recomputation_checkpoint import RecomputationCheckpoint, obey_checkpoints
from ...seams.keras.graph import call_nodes
from ...seams.keras.layers import arguments_from_context, takes_training

# A value of the model: the identity of its KerasTensor, or a name of our own for a state that Keras
# leaves implicit.
Key = Any
Values = dict[Key, Any]


@dataclass(frozen=True)
class Ref:
    """Stands in a call's arguments where the value ``key`` goes."""

    key: Key


@dataclass(frozen=True)
class InitialState:
    """The key of state number ``slot`` that ``layer`` starts from when it is given none."""

    layer: Any
    slot: int


@dataclass(frozen=True, eq=False)
class Call:
    """One use of a Keras operation: ``outputs = operation(*args, **kwargs)`` with Refs for values.

    With ``stays_with_producer`` the call belongs to the section that makes its input, whether it
    leads to a checkpoint or not. Its outputs are a checkpoint if the call ``is_marked``, or calls a
    RecomputationCheckpoint. ``output_bytes`` are the sizes of the outputs for one sample, with
    1 for every other dimension that is not known. ``training`` is what Keras noted for the call; it
    counts where the model is called without (see ``as_noted``).
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    stage: int | None = None
    stays_with_producer: bool = False
    is_marked: bool = False
    output_bytes: tuple[int, ...] = ()
    training: Any = None

    @property
    def is_checkpoint_layer(self) -> bool:
        """Whether it calls a RecomputationCheckpoint."""
        return isinstance(self.operation, RecomputationCheckpoint)

    @property
    def ends_section(self) -> bool:
        """Whether there is a checkpoint on its outputs."""
        return self.is_marked or self.is_checkpoint_layer

    def run(self, values: Values) -> None:
        """Call the operation on ``values`` and add its results to them."""

        def fill(leaf: Any) -> Any:
            return values[leaf.key] if isinstance(leaf, Ref) else leaf

        args, kwargs = keras.tree.map_structure(fill, (self.args, self.kwargs))
        with obey_checkpoints(self.operation):
            results = self.operation(*args, **kwargs)
        values.update(zip(self.outputs, keras.tree.flatten(results)))


@dataclass(frozen=True, eq=False)
class Graph:
    """A functional model: ``calls`` in running order, from ``inputs`` to ``outputs``.

    ``ranks`` has the number of dimensions of each value.
    """

    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    calls: tuple[Call, ...]
    ranks: Mapping[Key, int] = field(default_factory=dict)

    @property
    def initial_states(self) -> tuple[InitialState, ...]:
        """The implicit states that must be made before the calls can run."""
        states: dict[InitialState, None] = {}
        for key in keys_read(self.calls):
            if isinstance(key, InitialState):
                states[key] = None
        return tuple(states)


def starting_values(graph: Graph, arrays: Sequence[Any]) -> Values:
    """Return the values that calls begin with: inputs of the graph, and implicit states."""
    values: Values = dict(zip(graph.inputs, arrays))
    for key in graph.initial_states:
        batch = keras.ops.shape(arrays[0])[0]
        states = keras.tree.flatten(key.layer.get_initial_state(batch_size=batch))
        # Keras casts them inside of the layer.
        values[key] = keras.ops.cast(states[key.slot], key.layer.compute_dtype)
    return values


def as_trained(call: Call) -> Call:
    """Return ``call`` with ``training=True``, where its operation takes it."""
    training = {"training": True} if takes_training(call.operation) else {}
    kwargs = {**call.kwargs, **training}
    return Call(call.operation, call.args, kwargs, call.inputs, call.outputs)


def checkpoints_in(calls: Iterable[Call]) -> list[Call]:
    """Return those of ``calls`` that end a section."""
    return [call for call in calls if call.ends_section]


def keys_made(calls: Iterable[Call]) -> list[Key]:
    """Return the keys of all values that ``calls`` make, in order."""
    return [key for call in calls for key in call.outputs]


def keys_read(calls: Iterable[Call]) -> list[Key]:
    """Return the keys of all values that ``calls`` read, in order."""
    return [key for call in calls for key in call.inputs]


def positions_of(keys: Iterable[Key]) -> dict[Key, int]:
    """Return the position of each of ``keys`` among them."""
    return {key: position for position, key in enumerate(keys)}


def operations_of(calls: Iterable[Call]) -> list[Any]:
    """Return what ``calls`` call, in order."""
    return [call.operation for call in calls]


def read_graph(model: keras.Model, stage_of: Callable[[Any], int | None] = lambda _: None) -> Graph:
    """Return the graph of a functional ``model``.

    ``stage_of`` gives the pipeline stage of a Keras node, if it has one.
    """
    nodes = call_nodes(model)
    continued = {node.operation for node in nodes if _takes_initial_state(node)}
    calls = []
    ranks = {id(tensor): len(tensor.shape) for tensor in model.inputs}
    for node in nodes:
        given = node.arguments.args, node.arguments.kwargs
        args, kwargs = keras.tree.map_structure(_reference, given)
        # Keras notes the defaults of the first call here, such as training=False, and overrides
        # them at every other call.
        from_context = arguments_from_context(node.operation)
        training = kwargs.get("training")
        for name in from_context:
            kwargs.pop(name, None)
        if node.operation in continued and not _takes_initial_state(node):
            # The first of several uses of one recurrent layer starts from states that Keras makes
            # inside the layer. Named here, they make the first section equal to the sections that
            # continue it.
            count = len(keras.tree.flatten(node.operation.state_size))
            states = [Ref(InitialState(node.operation, slot)) for slot in range(count)]
            kwargs = {**kwargs, "initial_state": states}
        leaves = keras.tree.flatten((args, kwargs))
        inputs = tuple(leaf.key for leaf in leaves if isinstance(leaf, Ref))
        outputs = tuple(map(id, node.outputs))
        sizes = tuple(map(_bytes_of_one, node.outputs))
        call = Call(node.operation, tuple(args), dict(kwargs), inputs, outputs, stage_of(node))
        calls.append(replace(call, output_bytes=sizes, training=training))
        for tensor in node.outputs:
            ranks[id(tensor)] = len(tensor.shape)
    return Graph(
        inputs=tuple(map(id, model.inputs)),
        outputs=tuple(map(id, model.outputs)),
        calls=tuple(calls),
        ranks=ranks,
    )


def as_noted(graph: Graph) -> Graph:
    """Return ``graph`` as Keras runs it where the model is called without ``training``.

    Then a call has the ``training`` that Keras noted when the model was made, and hands it on to
    the calls behind it that have none. Keras's own layers take None for False, so for them a
    False is left out, that equal sections stay equal.
    """
    is_any_true = any(call.training not in (None, False) for call in graph.calls)
    around = None
    calls = []
    for call in graph.calls:
        around = call.training if call.training is not None else around
        is_implied = around is None or (around is False and is_of_keras(call.operation))
        if takes_training(call.operation) and (not is_implied or is_any_true):
            calls.append(replace(call, kwargs={**call.kwargs, "training": around}))
        else:
            calls.append(call)
    return graph if calls == list(graph.calls) else replace(graph, calls=tuple(calls))


def is_of_keras(operation: Any) -> bool:
    """Whether ``operation`` is of a class of Keras's or of this package's, not of the user's."""
    return type(operation).__module__.split(".")[0] in ("keras", "keras_recompute")


def ancestors(calls: Sequence[Call]) -> list[int]:
    """Return for each of ``calls``, in running order, the calls that it needs, itself included.

    Bit n of a number stands for call n.
    """
    maker: dict[Key, int] = {}
    for n, call in enumerate(calls):
        maker.update(dict.fromkeys(call.outputs, n))
    leading: list[int] = []
    for n, call in enumerate(calls):
        before = 1 << n
        for key in call.inputs:
            if key in maker:
                before |= leading[maker[key]]
        leading.append(before)
    return leading


def _reference(leaf: Any) -> Any:
    return Ref(id(leaf)) if isinstance(leaf, keras.KerasTensor) else leaf


def _bytes_of_one(tensor: keras.KerasTensor) -> int:
    # A text has no size here.
    size = 1 if tensor.dtype == "string" else np.dtype(tensor.dtype).itemsize
    return math.prod(d or 1 for d in tensor.shape[1:]) * size


def _takes_initial_state(node: Any) -> bool:
    layer = node.operation
    # States are made for the first dimension of the inputs, which is time in a time-major layer.
    if (
        not isinstance(layer, keras.layers.RNN)
        or layer.stateful
        or getattr(layer, "time_major", False)
    ):
        return False
    return len(node.arguments.args) > 1 or node.arguments.kwargs.get("initial_state") is not None
