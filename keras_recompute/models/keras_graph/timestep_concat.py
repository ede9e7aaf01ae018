"""Moves work on single timesteps in front of the concatenation of timesteps.

    Dense(Concatenate(y0, y1, ...)) = Concatenate(Dense(y0), Dense(y1), ...)

This holds for a layer that treats every timestep alone. Then each section does its own share, and
neither the outputs of the sections nor their gradients need to exist whole. What is concatenated is
what comes after the layer. Values and gradients stay the same, up to the order of additions in the
gradient of the layer's weights.
"""

from __future__ import annotations

from dataclasses import replace

import keras

from .call_graph import Call, Graph, Key, Ref

_PER_TIMESTEP = (
    keras.layers.Dense,
    keras.layers.Activation,
    keras.layers.LayerNormalization,
    keras.layers.ReLU,
)


def commute_concat(graph: Graph) -> Graph:
    """Return ``graph`` with layers on single timesteps moved before concatenations of timesteps."""
    calls = list(graph.calls)
    position = 0
    while position < len(calls):
        reader = (
            _only_reader(calls, calls[position], graph)
            if _joins_timesteps(calls[position], graph)
            else None
        )
        if reader is None:
            position += 1
            continue
        concatenation = calls[position]
        pieces: list[Call] = []
        keys: list[Key] = []
        for key in concatenation.inputs:
            piece = _on_piece(reader, key, calls)
            pieces.append(piece)
            keys.extend(piece.outputs)
        joined = Call(
            concatenation.operation,
            (list(map(Ref, keys)),),
            {},
            tuple(keys),
            reader.outputs,
            concatenation.stage,
            is_marked=reader.is_marked,
        )
        calls.remove(reader)
        calls[position : position + 1] = [*pieces, joined]
        position += len(pieces)
    return replace(graph, calls=tuple(calls))


def _joins_timesteps(call: Call, graph: Graph) -> bool:
    """Whether ``call`` concatenates sequences ``(batch, time, ...)`` along time.

    In values without time, axis 1 is the features.
    """
    if (
        not isinstance(call.operation, keras.layers.Concatenate)
        or call.operation.axis != 1
        or len(call.inputs) < 2
        or call.is_marked  # the whole value is to be kept
    ):
        return False
    return graph.ranks.get(call.outputs[0], 0) >= 3


def _only_reader(calls: list[Call], call: Call, graph: Graph) -> Call | None:
    """Return the only call that reads the result of ``call``, if it acts on single timesteps."""
    (result,) = call.outputs
    readers = [other for other in calls if result in other.inputs]
    if len(readers) != 1 or result in graph.outputs:
        return None
    (reader,) = readers
    layer = reader.operation
    if type(layer) not in _PER_TIMESTEP or reader.inputs != (result,) or reader.kwargs:
        return None
    # Normalising over the timesteps would see other numbers in a piece than in the whole.
    if isinstance(layer, keras.layers.LayerNormalization) and layer.axis not in (-1, [-1]):
        return None
    # Keras's own activations act on elements or along the last axis; any other function may do
    # anything.
    function = getattr(layer, "activation", None)
    if (
        function is not None
        and getattr(keras.activations, getattr(function, "__name__", ""), None) is not function
    ):
        return None
    return reader


def _on_piece(reader: Call, key: object, calls: list[Call]) -> Call:
    stage = reader.stage
    for call in calls:
        if key in call.outputs:
            stage = call.stage
            break
    return replace(
        reader,
        args=(Ref(key),),
        inputs=(key,),
        outputs=((key, reader.operation.name),),
        stage=stage,
        stays_with_producer=True,
        is_marked=False,
    )
