"""Side outputs of a Keras model: masks hung on tensors, losses left in layers.

A traced function would lose the first and let the second out of its graph. So both leave it as outputs, and are hung up
and left again outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..engine.stateless import StatelessUpdates
from ..seams.keras.layers import add_losses, attach_mask, layers_in, losses_of, mask_of, remove_losses
from .call_graph import Call


class SideOutputs:
    """The masks and losses that a traced part of a model made, as found when it was traced."""

    def __init__(self, calls: Sequence[Call]) -> None:
        layers = (call.operation for call in calls if isinstance(call.operation, keras.layers.Layer))
        self._layers = list(dict.fromkeys(inner for layer in layers for inner in layers_in(layer)))
        self._masked: tuple[int, ...] = ()
        self._owners: list[keras.layers.Layer] = []
        self._updates = StatelessUpdates()

    def __bool__(self) -> bool:
        return bool(self._masked or self._owners or self._updates.count)

    @property
    def leaves_state(self) -> bool:
        """Whether layers added losses, or changed variables of a stateless scope."""
        return bool(self._owners or self._updates.count)

    def gather(self, work: Callable[[], Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Return what ``work()`` returns, then the masks of that, then the losses that its layers added.

        And then the values that variables have in a stateless scope afterwards, if they were changed.
        """
        self._updates = StatelessUpdates()
        results, owners, losses = detach_losses(self._layers, work)
        outputs, self._masked = append_masks(results)
        self._owners = [self._layers[number] for number in owners]
        return self._updates.take([*outputs, *losses])

    def restore(self, gathered: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the outputs among the values of what was ``gathered``, their masks hung on and the losses left."""
        gathered = self._updates.leave(gathered)
        end = len(gathered) - len(self._masked) - len(self._owners)
        outputs = list(gathered[:end])
        attach_masks(outputs, self._masked, gathered[end:])
        for layer, loss in zip(self._owners, gathered[end + len(self._masked) :]):
            add_losses(layer, [loss])
        return outputs


def append_masks(values: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tuple[int, ...]]:
    """Return ``values`` and behind them the masks that Keras hung on them, and the numbers of those that have one."""
    masked = tuple(number for number, value in enumerate(values) if mask_of(value) is not None)
    return [*values, *(mask_of(values[number]) for number in masked)], masked


def attach_masks(values: Sequence[tf.Tensor], masked: Sequence[int], masks: Sequence[tf.Tensor]) -> None:
    """Hang ``masks`` on those of ``values`` whose numbers are ``masked``."""
    for number, mask in zip(masked, masks):
        attach_mask(values[number], mask)


def detach_losses(layers: Sequence[keras.layers.Layer], work: Callable[[], Any]) -> tuple[Any, list[int], list[tf.Tensor]]:
    """Return what ``work()`` returns, then the losses that ``layers`` added in it, behind the number of the layer of each.

    The layers have them no more.
    """
    before = [len(losses_of(layer)) for layer in layers]
    results = work()
    added = [(number, loss) for number, layer in enumerate(layers) for loss in losses_of(layer)[before[number] :]]
    for number, loss in added:
        remove_losses(layers[number], [loss])
    return results, [number for number, _ in added], [loss for _, loss in added]
