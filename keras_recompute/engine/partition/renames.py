"""Renames of the copies of a program's operations, after the layers that a copy stands for.

Operations are named after the layers that made them, which shows in a report whose a buffer is. A
program that was traced for one section and is written for another equal one gets the names of the
latter's layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# TensorFlow numbers names that are taken.
_NUMBERED = re.compile(r"(.*?)(_\d+)?$")


class Renames:
    """Renames the parts of operations' names that are names of layers, numbered or not."""

    def __init__(self, layers: Mapping[str, str]) -> None:
        self._layers = {before: after for before, after in layers.items() if before != after}
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """Return the new name of an operation."""
        if not self._layers:
            return name
        if name not in self._known:
            self._known[name] = "/".join(map(self._part, name.split("/")))
        return self._known[name]

    def of_tensor(self, name: str) -> str:
        """Return the new name of a tensor or of a node's input, such as ``a/b:1`` or ``^a/b``."""
        if not self._layers:
            return name
        control, operation, number = re.fullmatch(r"(\^?)([^:]*)(:\d+)?", name).groups()  # type: ignore[union-attr]
        return f"{control}{self(operation)}{number or ''}"

    def rename_nodes(self, graph_def: Any, read: Iterable[str]) -> Renames:
        """Rename the nodes of a GraphDef and what they read, and return the renames in use.

        ``read`` are the names of all tensors that they read. If two names would become one, all
        stay.
        """
        if not self._layers:
            return self
        names = {name.split(":")[0] for name in read}
        names.update(node.name for node in graph_def.node)
        if len(set(map(self, names))) < len(names):
            return NONE
        for node in graph_def.node:
            node.name = self(node.name)
            inputs = [self.of_tensor(name) for name in node.input]
            del node.input[:]
            node.input.extend(inputs)
        return self

    def _part(self, part: str) -> str:
        if part in self._layers:
            return self._layers[part]
        base, number = _NUMBERED.fullmatch(part).groups()  # type: ignore[union-attr]
        return f"{self._layers[base]}{number}" if number and base in self._layers else part


NONE = Renames({})
