"""The layers of a clone that correspond to chosen layers of a model: ``keras.models.clone_model`` tells nobody.

It goes through the graph of a functional model with a new layer for each of the model's, and makes the clone of what comes out.
The new layers hold others in the same places, if they are of the same kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from ..errors import UnsupportedError
from ..seams.keras.graph import functional_like_constructor
from ..seams.keras.layers import layers_in


def clones_of(model: keras.Model, layers: Sequence[keras.layers.Layer], taken: Mapping[Any, Any]) -> list[keras.layers.Layer]:
    """Return what stands for ``layers`` of a functional ``model`` where each of its operations was ``taken`` for another.

    Nothing where what was taken are no layers, as in a call of the model. Raises UnsupportedError where the clone cannot
    recompute them: Keras makes it of another class, or a new layer holds others than the model's does.
    """
    pairs = [(own, other) for own, other in taken.items() if _is_layer(own) and _is_layer(other)]
    if not layers or not pairs:
        return []
    would_not = f"keras.models.clone_model of {model.name!r} would not recompute {layers[0].path!r}"
    instead = "Clone the model that it was made from, and give the clone to keras_recompute.checkpointed(clone, layers=...)."
    if not functional_like_constructor(type(model)):
        raise UnsupportedError(
            f"{would_not}: it makes a plain functional model of a {type(model).__name__}, whose constructor is its own. "
            f"{instead}"
        )
    inside = {own: (layers_in(own), layers_in(other)) for own, other in pairs}
    for own, (ours, others) in inside.items():
        if len(ours) != len(others) and not set(ours).isdisjoint(layers):
            raise UnsupportedError(
                f"{would_not}: the layer taken for {own.name!r}, which holds it or another one of {len(layers)}, has "
                f"{len(others) - 1} layers inside in place of {len(ours) - 1}. {instead}"
            )
    stands_for = {each: new for ours, others in inside.values() for each, new in zip(ours, others)}
    return [stands_for[layer] for layer in layers]


def _is_layer(operation: Any) -> bool:
    return isinstance(operation, keras.layers.Layer)
