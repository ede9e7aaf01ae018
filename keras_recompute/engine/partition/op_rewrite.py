"""Rewrites of single operations: other operations that do the same, copied into its place.

A rewrite is written once per kind and shape of an operation, and kept as data.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...backends import backend_now
from ...seams.tensorflow.functions import find_function
from ..graph.source_location import static_shape
from ..graph.variables_by_value import called_by

_INPUT, _RESULT = "input_", "result"


def rewritten_nodes(
    operation: tf.Operation, make: Callable[..., tf.Tensor], inputs: Sequence[str]
) -> tuple[list[Any], list[Any]]:
    """Return the nodes of ``make``, named and fed like ``operation``, and the functions they call.

    ``make`` is a function of the inputs of ``operation``: a function of a module, or a
    ``functools.partial`` of one with values that compare by value.
    """
    (result,) = operation.outputs
    given = tuple((t.dtype, static_shape(t)) for t in operation.inputs)
    serialized, functions = _rewrite_graph(
        _Rewrite(make), given, static_shape(result), backend_now()
    )
    fed = {f"{_INPUT}{number}": name for number, name in enumerate(inputs)}
    found = []
    for node in tf.compat.v1.GraphDef.FromString(serialized).node:
        # The operation's own inputs take the place of the placeholders.
        if node.op == "Placeholder":
            continue
        renamed = functools.partial(_renamed, operation=operation.name, fed=fed)
        inputs_here = list(map(renamed, node.input))
        del node.input[:]
        node.input.extend(inputs_here)
        node.name = renamed(node.name)
        found.append(node)
    return found, list(functions)


class _Rewrite:
    """A function that may be partial, as a value: partial functions compare by identity."""

    def __init__(self, make: Callable[..., tf.Tensor]) -> None:
        self.make, self._key = make, _key(make)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rewrite) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _key(value: Any) -> Any:
    if isinstance(value, functools.partial):
        return (
            value.func,
            *map(_key, value.args),
            *((name, _key(item)) for name, item in sorted(value.keywords.items())),
        )
    return value


@functools.lru_cache(maxsize=512)
def _rewrite_graph(
    made: _Rewrite, given: tuple[Any, ...], result: Any, _: Any
) -> tuple[bytes, tuple[Any, ...]]:
    """Return the graph that ``made`` writes, and the functions that it calls.

    The last argument is the backend that it is for.
    """
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.compat.v1.placeholder(dtype, shape, name=f"{_INPUT}{number}")
            for number, (dtype, shape) in enumerate(given)
        ]
        found = made.make(*inputs)
        found.set_shape(result)
        tf.identity(found, name=_RESULT)
        definition = graph.as_graph_def()
    called = set(itertools.chain(*map(called_by, definition.node)))
    functions = map(functools.partial(find_function, graph), called)
    return definition.SerializeToString(), tuple(functions)


def _renamed(name: str, operation: str, fed: dict[str, str]) -> str:
    """Return the name of a node or input ``name`` in the place of ``operation``."""
    if name.startswith("^"):
        return f"^{_renamed(name[1:], operation, fed)}"
    if name in fed:
        return fed[name]
    return operation if name == _RESULT else f"{operation}/{name}"
