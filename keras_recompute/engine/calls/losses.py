"""Losses that layers add while a function is traced: they become results, and are added outside.

``add_loss`` puts a tensor into a list of the layer, or of a stateless scope, which Keras reads
after the call. A tensor of a traced function has no value outside, so the loss that the program
returns is put in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...seams.keras.layers import add_losses, losses_of, remove_losses
from ...seams.tensorflow.tensors import is_of


class Losses:
    """The layers that added losses in one trace, one entry per loss."""

    def __init__(self) -> None:
        self._layers: list[keras.layers.Layer] = []

    @property
    def count(self) -> int:
        """How many losses were added."""
        return len(self._layers)

    def collect(self, results: Sequence[tf.Tensor], objects: Iterable[Any]) -> list[tf.Tensor]:
        """Return ``results``, then the losses of this graph, which their layers lose.

        ``objects`` are searched for layers.
        """
        graph = tf.compat.v1.get_default_graph()
        outputs = list(results)
        self._layers = []
        for layer in objects:
            if not isinstance(layer, keras.layers.Layer):
                continue
            added = [loss for loss in losses_of(layer) if is_of(loss, graph)]
            remove_losses(layer, added)
            self._layers += [layer] * len(added)
            outputs += added
        return outputs

    def reattach(self, outputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the results among ``outputs``, and add the losses behind them to their layers.

        ``outputs`` are the values of what ``collect`` returned.
        """
        end = len(outputs) - self.count
        for layer, loss in zip(self._layers, outputs[end:]):
            add_losses(layer, [loss])
        return outputs[:end]
