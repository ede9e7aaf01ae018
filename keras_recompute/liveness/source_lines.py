"""The line of the user's code that made each operation of a traced function.

XLA is told lines of TensorFlow itself, and the engine copies operations between graphs. The user's
own operation still knows its line: the innermost one outside of the packages around it. A line that
called these packages, as that of ``fit``, would be the same for all operations and is left out.
"""

from __future__ import annotations

from typing import Any, Iterator

from ..op_names import original_of
from ..seams.tensorflow.concrete_functions import called_functions


def source_lines(concrete: Any, packages: tuple[str, ...]) -> dict[str, str]:
    """Return ``{operation: "file:line"}`` for a concrete function and the functions that it calls.

    Operations are named as in their own graphs. ``packages`` are folders, with a trailing slash,
    whose lines are not the user's.
    """
    found: dict[str, str] = {}
    # Memoised, since each copy of a graph asks for the same operations.
    lines: dict[tuple[int, str], str | None] = {}

    def line(operation: Any) -> str | None:
        original = original_of(operation)
        key = id(original.graph), original.name
        if key not in lines:
            lines[key] = _line(original, packages)
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


def _line(operation: Any, packages: tuple[str, ...]) -> str | None:
    frames = list(operation.traceback or ())
    is_users = [not frame.filename.startswith((*packages, "<")) for frame in frames]
    # The frames up to here are the caller's, such as fit.
    called_from = is_users.index(False) if False in is_users else -1
    # The innermost line of the user's, below the call into the packages.
    for number in range(len(frames) - 1, called_from, -1):
        if is_users[number]:
            return f"{frames[number].filename}:{frames[number].lineno}"
    return None
