"""Losses that layers add while a function is traced: they leave it as results, and are added again outside.

``add_loss`` puts a tensor into a list, of the layer or of a stateless scope, which Keras reads
after the call. Of a traced function that tensor has no value outside, so the loss that it has
there takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..seams.keras.layers import add_losses, losses_of, remove_losses
from ..seams.tensorflow.tensors import is_eager


class Losses:
    """The layers that added losses in one trace, one entry per loss."""

    def __init__(self) -> None:
        self._layers: list[keras.layers.Layer] = []

    @property
    def count(self) -> int:
        """How many losses were added."""
        return len(self._layers)

    def collect(self, results: Sequence[tf.Tensor], objects: Iterable[Any]) -> list[tf.Tensor]:
        """Return ``results`` and, behind them, the losses of this graph that layers among ``objects`` have; they lose them."""
        graph = tf.compat.v1.get_default_graph()
        outputs = list(results)
        self._layers = []
        for layer in objects:
            if not isinstance(layer, keras.layers.Layer):
                continue
            added = [loss for loss in losses_of(layer) if _is_of(loss, graph)]
            remove_losses(layer, added)
            self._layers += [layer] * len(added)
            outputs += added
        return outputs

    def reattach(self, outputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the results among ``outputs``, the values of what ``collect`` returned, and add the losses to their layers."""
        end = len(outputs) - self.count
        for layer, loss in zip(self._layers, outputs[end:]):
            add_losses(layer, [loss])
        return outputs[:end]


def _is_of(loss: Any, graph: Any) -> bool:
    return isinstance(loss, tf.Tensor) and not is_eager(loss) and loss.graph is graph
