"""Two walks over graphs of any kind: what is reached from somewhere, and the order in which things need one another."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def reachable(starts: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> dict[Node, None]:
    """Return ``starts`` and all that ``following`` leads to from there, once each, as an ordered set."""
    found = dict.fromkeys(starts)
    waiting = list(found)
    while waiting:
        new = [node for node in dict.fromkeys(following(waiting.pop())) if node not in found]
        found.update(dict.fromkeys(new))
        waiting.extend(new)
    return found


def topological_order(ends: Iterable[Node], needed: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return ``ends`` and all that is ``needed`` for them, once each and each after what it needs: depth first."""
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
