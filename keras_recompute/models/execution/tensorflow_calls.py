"""Recomputation of the calls of one layer on TensorFlow, by the engine."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from ...engine import Built, checkpoint, saves_memory
from ...engine.graph import kept_with
from ...engine.policies import save_replay_sources
from ...layers.checkpointed_layer import CheckpointedLayer
from ...layers.masks_and_losses import detach_losses
from ...layers.time_sections import section_recurrent_layers
from ...seams.keras.layers import add_losses, layers_in
from ..keras_graph.fingerprint import Fingerprints
from .partition_cache import may_be_shared, rebound

_Known = tuple[keras.layers.Layer, Built]
# Under this name a graph keeps what was built of its layers.
_EQUAL = "_keras_recompute_equal_layers"
_numbers = itertools.count()


def recomputes_itself(layer: keras.layers.Layer) -> bool:
    """Whether ``layer`` is a ``kr.checkpoint`` of another one."""
    return isinstance(layer, CheckpointedLayer)


def recomputed_call(
    layer: keras.layers.Layer,
    plain: Callable[..., Any],
    note: Callable[[Callable[[], bool]], None],
) -> Callable[..., Any]:
    """Return ``plain``, a method of ``layer``, which is run again in the backward pass.

    ``note`` can ask of each program whether it saves memory.
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

    def share(kind: Any, build: Callable[[], Built]) -> Built:
        if tf.executing_eagerly():
            built = build()
        else:
            equal = kept_with(tf.compat.v1.get_default_graph(), _EQUAL, _EqualLayers)
            built = equal.get(layer, (plain.__name__, kind), build)
        note(lambda: saves_memory(built.part))
        return built

    recomputed.share = share
    # The group of layers warns once for all of them.
    recomputed.advise = lambda *_: None

    def call(*args: Any, **kwargs: Any) -> Any:
        with section_recurrent_layers():
            results, layer_numbers, losses = recomputed(*args, **kwargs)
        for number, loss in zip(layer_numbers, losses):
            add_losses(inner[number], [loss])
        return results

    return call


class _EqualLayers:
    """What was built of layers in one graph: equal ones share it, as equal sections do."""

    def __init__(self) -> None:
        self._built: defaultdict[Hashable, list[_Known]] = defaultdict(list)

    def get(self, layer: keras.layers.Layer, kind: Hashable, build: Callable[[], Built]) -> Built:
        """Return what was built of an equal layer, rebound to ``layer``; else ``build()``.

        ``kind`` holds what it depends on beside the layer.
        """
        found = Fingerprints().of(layer)
        if not may_be_shared(found):
            return build()

        alike = self._built[found.key, kind]
        for other, built in alike:
            part = rebound(built.part, [(other, layer)])
            if part is not None:
                return replace(built, part=part)

        built = build()
        if built.is_portable:
            alike.append((layer, built))
        return built
