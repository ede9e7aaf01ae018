"""What Keras passes beside the values of a model: masks hung on tensors, losses left in layers.

A traced function would lose the first and let the second out of its graph. So both leave it as outputs, and are hung up
and left again outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from .graph import Call


class Aside:
    """The masks and losses that a traced part of a model made, as found when it was traced."""

    def __init__(self, calls: Sequence[Call]) -> None:
        layers = (call.operation for call in calls if isinstance(call.operation, keras.layers.Layer))
        self._layers = list(dict.fromkeys(inner for layer in layers for inner in layer._flatten_layers()))
        self._masked: list[int] = []
        self._owners: list[keras.layers.Layer] = []

    def __bool__(self) -> bool:
        return bool(self._masked or self._owners)

    @property
    def leaves_losses(self) -> bool:
        """Whether layers added losses."""
        return bool(self._owners)

    def gather(self, work: Callable[[], Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Return what ``work()`` returns, then the masks of that, then the losses that its layers added."""
        before = {layer: len(layer._losses) for layer in self._layers}
        outputs = list(work())
        self._masked = [number for number, value in enumerate(outputs) if mask_of(value) is not None]
        added = [(layer, loss) for layer in self._layers for loss in layer._losses[before[layer] :]]
        self._owners = [layer for layer, _ in added]
        for layer in self._layers:
            del layer._losses[before[layer] :]
        return [*outputs, *(mask_of(outputs[number]) for number in self._masked), *(loss for _, loss in added)]

    def restore(self, gathered: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the outputs among the values of what was ``gathered``, their masks hung on and the losses left."""
        end = len(gathered) - len(self._masked) - len(self._owners)
        outputs = list(gathered[:end])
        for number, mask in zip(self._masked, gathered[end:]):
            outputs[number]._keras_mask = mask
        for layer, loss in zip(self._owners, gathered[end + len(self._masked) :]):
            layer._losses.append(loss)
        return outputs


def mask_of(value: tf.Tensor) -> tf.Tensor | None:
    """Return the mask that Keras hung on ``value``, or None."""
    return getattr(value, "_keras_mask", None)
