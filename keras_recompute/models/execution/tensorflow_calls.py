"""Recomputation of the calls of one layer on TensorFlow, by the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras

from ...engine import Partition, checkpoint, saves_memory
from ...engine.policies import save_replay_sources
from ...layers.checkpointed_layer import CheckpointedLayer
from ...layers.masks_and_losses import detach_losses
from ...layers.time_sections import section_recurrent_layers
from ...seams.keras.layers import add_losses, layers_in

_numbers = itertools.count()


def recomputes_itself(layer: keras.layers.Layer) -> bool:
    """Whether ``layer`` is a ``kr.checkpoint`` of another one."""
    return isinstance(layer, CheckpointedLayer)


def recomputed_call(
    layer: keras.layers.Layer, plain: Callable[..., Any], note: Callable[[bool], None]
) -> Callable[..., Any]:
    """Return ``plain``, a method of ``layer``, which is run again in the backward pass.

    ``note`` is told of each program whether it saves memory.
    """
    inner = layers_in(layer)

    def work(*args: Any, **kwargs: Any) -> Any:
        # Left in the layers, losses would leave the function that is traced here.
        return detach_losses(inner, lambda: plain(*args, **kwargs))

    work.__name__ = layer.name
    # One code for each layer: the engine takes many functions of one code for one that is made at
    # each call.
    work.__code__ = work.__code__.replace(co_name=f"{layer.name} {next(_numbers)}")
    recomputed = checkpoint(work, policy=save_replay_sources)

    def advise(part: Partition, *_: Any) -> None:
        note(saves_memory(part))

    recomputed.advise = advise

    def call(*args: Any, **kwargs: Any) -> Any:
        with section_recurrent_layers():
            results, layer_numbers, losses = recomputed(*args, **kwargs)
        for number, loss in zip(layer_numbers, losses):
            add_losses(inner[number], [loss])
        return results

    return call
