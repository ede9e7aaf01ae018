"""A smallest cut through a graph whose nodes have sizes, by maximum flow.

The maximum flow from the sources to the sinks equals the size of a smallest cut (Ford and Fulkerson
1956; Dinic 1970). AOTAutograd of PyTorch chooses what it saves by such a cut too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def minimum_cut(
    sizes: Mapping[Node, int],
    edges: Iterable[tuple[Node, Node]],
    sources: set[Node],
    sinks: set[Node],
) -> set[Node]:
    """Return a smallest set of nodes that every path from ``sources`` to ``sinks`` crosses.

    Its total size is smallest. Sources and sinks may be cut themselves. Of several smallest cuts
    this is the one nearest to the sinks.
    """
    flow = _Flow()
    # A node is an edge of its size, so that a cut through edges is one through nodes.
    for node, size in sizes.items():
        flow.connect((node, 0), (node, 1), size)
    # No smallest cut goes through the other edges.
    unlimited = sum(sizes.values()) + 1
    for a, b in edges:
        flow.connect((a, 1), (b, 0), unlimited)
    for node in sources:
        flow.connect(_SOURCE, (node, 0), unlimited)
    for node in sinks:
        flow.connect((node, 1), _SINK, unlimited)
    flow.fill()
    reaching = flow.reaching_sink()
    return {node for node in sizes if (node, 1) in reaching and (node, 0) not in reaching}


_SOURCE, _SINK = ("source",), ("sink",)


class _Flow:
    """A flow network; ``residual[a][b]`` is how much more may flow from a to b."""

    def __init__(self) -> None:
        self.residual: dict[object, dict[object, int]] = {_SOURCE: {}, _SINK: {}}

    def connect(self, a: object, b: object, capacity: int) -> None:
        self.residual.setdefault(a, {}).setdefault(b, 0)
        self.residual.setdefault(b, {}).setdefault(a, 0)
        self.residual[a][b] += capacity

    def fill(self) -> None:
        """Let as much flow as can, in rounds along shortest paths only (Dinic)."""
        while True:
            distance = self._distances()
            if _SINK not in distance:
                return
            ahead: dict[object, list[object]] = {}
            for node, steps in distance.items():
                residual = self.residual[node].items()
                ahead[node] = [
                    n for n, capacity in residual if capacity and distance.get(n) == steps + 1
                ]
            while self._augment(ahead):
                pass

    def _distances(self) -> dict[object, int]:
        distance: dict[object, int] = {_SOURCE: 0}
        waiting = deque([_SOURCE])
        while waiting and _SINK not in distance:
            node = waiting.popleft()
            for following, capacity in self.residual[node].items():
                if capacity and following not in distance:
                    distance[following] = distance[node] + 1
                    waiting.append(following)  # type: ignore[arg-type]
        return distance

    def _augment(self, ahead: dict[object, list[object]]) -> bool:
        """Let more flow along one path, and forget dead ends on the way."""
        path: list[object] = [_SOURCE]
        while path and path[-1] is not _SINK:
            node = path[-1]
            choices = ahead.get(node, [])
            while choices and not self.residual[node][choices[-1]]:
                choices.pop()
            if choices:
                path.append(choices[-1])
            else:
                path.pop()
                if path:
                    ahead[path[-1]].pop()
        if not path:
            return False
        steps = list(zip(path, path[1:]))
        amount = min(self.residual[a][b] for a, b in steps)
        for a, b in steps:
            self.residual[a][b] -= amount
            self.residual[b][a] += amount
        return True

    def reaching_sink(self) -> set[object]:
        """Return the nodes from which more could flow to the sink."""
        found: set[object] = {_SINK}
        waiting: list[object] = [_SINK]
        while waiting:
            node = waiting.pop()
            for before in self.residual[node]:
                if self.residual[before][node] and before not in found:
                    found.add(before)
                    waiting.append(before)
        return found
