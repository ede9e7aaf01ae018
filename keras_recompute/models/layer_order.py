"""The order of the layers and weights of a model: as before checkpoints were inserted.

Keras lists layers by their distance from the outputs. Layers of one distance follow in the order of
a walk from the outputs to the inputs. A checkpoint in one of two branches would add to the distance
of what is in front of it, and layers of the branches would change places: weights would be loaded,
by position, into the layers of another branch. So an inserted checkpoint adds no distance. One that
the model had before counts as any layer, as in Keras.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from ..layers.recomputation_checkpoint import RecomputationCheckpoint
from ..seams.keras.graph import nodes_of_operation, producing_node


def order_ignoring_inserted(
    operations: Sequence[Any], outputs: Sequence[keras.KerasTensor]
) -> list[Any]:
    """Return ``operations`` in the order of the model without inserted checkpoints.

    An inserted checkpoint stands behind the layer whose result it keeps.
    """
    nodes = _nodes_before(outputs)
    met: dict[Any, int] = {}
    for node in nodes[0]:
        met.setdefault(node.operation, len(met))
    distance: dict[Any, int] = {}  # of nodes
    farthest: dict[Any, int] = {}  # of operations
    for node in reversed(nodes[1]):
        distance[node] = max(distance.get(node, 0), farthest.get(node.operation, 0))
        farthest[node.operation] = distance[node]
        step = 0 if _was_inserted(node.operation) else 1
        for before in node.parent_nodes:
            distance[before] = max(distance.get(before, 0), distance[node] + step)

    def place(operation: Any) -> tuple[int, int, bool]:
        keeps = _producer_among(met, operation) if _was_inserted(operation) else None
        return -farthest.get(operation, 0), met.get(keeps or operation, -1), keeps is not None

    return sorted(operations, key=place)


def _producer_among(met: Mapping[Any, int], operation: Any) -> Any:
    """Return the first operation in ``met`` whose result ``operation`` reads, if any."""
    for node in nodes_of_operation(operation):
        for parent in node.parent_nodes:
            if parent.operation in met:
                return parent.operation
    return None


def _was_inserted(operation: Any) -> bool:
    return isinstance(operation, RecomputationCheckpoint) and operation.was_inserted


def _nodes_before(outputs: Sequence[keras.KerasTensor]) -> tuple[list[Any], list[Any]]:
    """Return the nodes that lead to ``outputs``, in preorder and in postorder of a walk back."""
    met: dict[Any, None] = {}
    left: list[Any] = []
    for output in outputs:
        stack = [(producing_node(output), False)]
        while stack:
            node, is_left = stack.pop()
            if is_left:
                left.append(node)
            elif node not in met:
                met[node] = None
                stack.append((node, True))
                inputs = () if node.is_input else node.input_tensors
                stack.extend((producing_node(tensor), False) for tensor in reversed(inputs))
    return list(met), left
