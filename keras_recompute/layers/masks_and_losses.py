"""Masks that Keras attaches to tensors, and losses that layers add: taken off and put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from ..seams.keras.layers import attach_mask, losses_of, mask_of, remove_losses


def append_masks(values: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return ``values`` with their masks behind them, and the numbers of the masked ones."""
    masks, masked = [], []
    for number, value in enumerate(values):
        mask = mask_of(value)
        if mask is not None:
            masks.append(mask)
            masked.append(number)
    return [*values, *masks], tuple(masked)


def attach_masks(values: Sequence[Any], masked: Sequence[int], masks: Sequence[Any]) -> None:
    """Attach ``masks`` to the ``values`` whose numbers are ``masked``."""
    for number, mask in zip(masked, masks):
        attach_mask(values[number], mask)


def detach_losses(
    layers: Sequence[keras.layers.Layer], work: Callable[[], Any]
) -> tuple[Any, list[int], list[Any]]:
    """Return the results of ``work()``, and the losses that ``layers`` added in it.

    Between them stands the number of each loss's layer. The losses are removed from the layers.
    """
    before = [len(losses_of(layer)) for layer in layers]
    results = work()
    numbers: list[int] = []
    added: list[Any] = []
    for number, layer in enumerate(layers):
        losses = losses_of(layer)[before[number] :]
        numbers.extend([number] * len(losses))
        added.extend(losses)
    for number, loss in zip(numbers, added):
        remove_losses(layers[number], [loss])
    return results, numbers, added
