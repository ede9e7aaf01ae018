"""The values of a model that no training step differentiates.

They are the results of layers in front of the first trainable weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ...seams.tensorflow.gradients import is_recorded
from .call_graph import Graph, Key


def values_without_gradient(graph: Graph, inputs: Sequence[tf.Tensor]) -> set[Key]:
    """Return the values of ``graph`` that depend on no trainable weight and on no watched input.

    An input is watched if a tape records it. The inputs themselves are not returned: with them, the
    first of several equal sections would differ from the others.
    """
    moving = {key for key, value in zip(graph.inputs, inputs) if is_recorded(value)}
    fixed: set[Key] = set()
    for call in graph.calls:
        trains = any(v.trainable for v in getattr(call.operation, "variables", ()))
        found = moving if trains or not moving.isdisjoint(call.inputs) else fixed
        found.update(call.outputs)
    return fixed
