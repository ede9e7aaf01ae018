"""Variables that a traced function changes in ``keras.StatelessScope``, as ``stateless_call`` does.

There Keras keeps new values in the scope, and not in the variables. Values of a traced function do
not exist outside it, so they become results, and the scope is given the results.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ...seams.keras.call_context import stateless_values
from ...seams.tensorflow.tensors import is_of


class StatelessUpdates:
    """The variables that one trace changed in the scope around it."""

    def __init__(self) -> None:
        self._before = dict(stateless_values())
        self._changed: list[int] = []

    @property
    def count(self) -> int:
        """How many variables were changed."""
        return len(self._changed)

    def collect(self, results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return ``results``, then the new values; the scope has the old ones again."""
        values = stateless_values()
        graph = tf.compat.v1.get_default_graph()
        # Of variables in the place of values nothing is known but that they are not of this graph.
        self._changed = []
        for key, value in values.items():
            if is_of(value, graph):
                self._changed.append(key)
        outputs = [*results, *map(values.__getitem__, self._changed)]
        if self._changed:
            values.clear()
            values.update(self._before)
        return outputs

    def reattach(self, outputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the results among ``outputs``, and give the new values to the scope."""
        end = len(outputs) - self.count
        stateless_values().update(zip(self._changed, outputs[end:]))
        return outputs[:end]
