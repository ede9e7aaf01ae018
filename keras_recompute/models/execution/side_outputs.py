"""Side outputs of a Keras model: masks attached to tensors, and losses added to layers.

Inside a traced function masks would be lost, and losses would leak out of its graph. So the
function returns both as outputs, and they are attached and added again outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from ...engine.calls import StatelessUpdates
from ...layers.masks_and_losses import append_masks, attach_masks, detach_losses
from ...seams.keras.layers import add_losses, layers_in
from ..keras_graph.call_graph import Call


class SideOutputs:
    """The masks and losses that a traced part of a model made, as found when it was traced."""

    def __init__(self, calls: Sequence[Call]) -> None:
        inside: dict[keras.layers.Layer, None] = {}
        for call in calls:
            if isinstance(call.operation, keras.layers.Layer):
                inside.update(dict.fromkeys(layers_in(call.operation)))
        self._layers = list(inside)
        self._masked: tuple[int, ...] = ()
        self._layers_of_losses: list[keras.layers.Layer] = []
        self._updates = StatelessUpdates()

    def __bool__(self) -> bool:
        return bool(self._masked or self._layers_of_losses or self._updates.count)

    @property
    def leaves_state(self) -> bool:
        """Whether layers added losses, or changed variables of a stateless scope."""
        return bool(self._layers_of_losses or self._updates.count)

    def collect(self, work: Callable[[], Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Return the results of ``work()``, then their masks, then the losses that layers added.

        Last come the new values of variables that were changed in a stateless scope.
        """
        self._updates = StatelessUpdates()
        results, layer_numbers, losses = detach_losses(self._layers, work)
        outputs, self._masked = append_masks(results)
        self._layers_of_losses = list(map(self._layers.__getitem__, layer_numbers))
        return self._updates.collect([*outputs, *losses])

    def reattach(self, collected: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the results among ``collected`` values, and put masks and losses back."""
        collected = self._updates.reattach(collected)
        end = len(collected) - len(self._masked) - len(self._layers_of_losses)
        outputs = list(collected[:end])
        attach_masks(outputs, self._masked, collected[end:])
        for layer, loss in zip(self._layers_of_losses, collected[end + len(self._masked) :]):
            add_losses(layer, [loss])
        return outputs
