"""Traversal of directed graphs: reachable nodes, and topological order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def reachable(
    starts: Iterable[Node], following: Callable[[Node], Iterable[Node]]
) -> dict[Node, None]:
    """Return ``starts`` and every node that ``following`` leads to, as an ordered set."""
    found = dict.fromkeys(starts)
    waiting = list(found)
    while waiting:
        new = [node for node in dict.fromkeys(following(waiting.pop())) if node not in found]
        found.update(dict.fromkeys(new))
        waiting.extend(new)
    return found


def topological_order(ends: Iterable[Node], needed: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return ``ends`` and all that they need, each node after what it needs, depth first."""
    met: set[Node] = set()
    order: list[Node] = []
    stack = [(node, False) for node in reversed(list(ends))]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            order.append(node)
        elif node not in met:
            met.add(node)
            stack.append((node, True))
            stack.extend((before, False) for before in reversed(list(needed(node))))
    return order
