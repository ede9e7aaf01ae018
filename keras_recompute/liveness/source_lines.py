"""The line of the user's code that made each operation of a traced function.

XLA is told lines of TensorFlow itself, and the engine copies operations between graphs. The user's
own operation still knows its line: the innermost one outside of the packages around it.
"""

from __future__ import annotations

from typing import Any, Iterator

from ..op_names import original_of
from ..seams.tensorflow.concrete_functions import called_functions
from ..user_code import called_line


def source_lines(concrete: Any) -> dict[str, str]:
    """Return ``{operation: "file:line"}`` for a concrete function and the functions that it calls.

    Operations are named as in their own graphs.
    """
    found: dict[str, str] = {}
    # Memoised, since each copy of a graph asks for the same operations.
    lines: dict[tuple[int, str], str | None] = {}

    def line(operation: Any) -> str | None:
        original = original_of(operation)
        key = id(original.graph), original.name
        if key not in lines:
            frames = reversed(original.traceback or ())
            lines[key] = called_line((frame.filename, frame.lineno) for frame in frames)
        return lines[key]

    for graph in _graphs(concrete.graph, set()):
        for operation in graph.get_operations():
            where = line(operation)
            if where is not None:
                found.setdefault(operation.name, where)
    return found


def _graphs(graph: Any, seen: set[str]) -> Iterator[Any]:
    yield graph
    for name, function in called_functions(graph).items():
        inner = getattr(function, "graph", None)
        if inner is not None and name not in seen:
            seen.add(name)
            yield from _graphs(inner, seen)
