"""What a clone of a model, or a model built on its outputs, takes over from it.

``keras.models.clone_model`` hands nothing over. It goes through the graph of a functional model
with a new layer for each layer, and makes the clone of the outputs. So what the clone has to know
is noted on these. Inside a layer and its clone, layers correspond by their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from ...errors import UnsupportedError
from ...seams.keras.graph import functional_like_constructor
from ...seams.keras.layers import layers_in

# The attribute of a KerasTensor that has the notes, by name.
_NOTES = "_keras_recompute"
_INSTEAD = "Clone the plain model, and give the clone to keras_recompute.checkpointed."


def leave_note(outputs: Any, name: str, note: Any) -> None:
    """Leave ``note`` on symbolic ``outputs`` of a model, for models that are made of them."""
    for output in keras.tree.flatten(outputs):
        setattr(output, _NOTES, {**getattr(output, _NOTES, {}), name: note})


def left_note(output: Any, name: str) -> Any:
    """Return the note ``name`` that was left on ``output``, or None."""
    return getattr(output, _NOTES, {}).get(name)


def check_class_of_clone(model: keras.Model, replacements: Mapping[Any, Any], *, what: str) -> None:
    """Raise UnsupportedError where Keras makes a clone of another class, which recomputes nothing.

    ``replacements`` maps each operation of ``model`` to the one called instead. ``what`` names what
    ``model`` recomputes.
    """
    if is_cloned(replacements) and not functional_like_constructor(type(model)):
        raise UnsupportedError(
            f"keras.models.clone_model of {model.name!r} would not recompute {what}: the "
            f"constructor of {type(model).__name__} is its own, so Keras clones it as a plain "
            f"functional model. {_INSTEAD}"
        )


def is_cloned(replacements: Mapping[Any, Any]) -> bool:
    """Return whether layers of a model were replaced by others, as ``clone_model`` does."""
    return any(own is not other for own, other in layers_for_layers(replacements))


def counterparts(
    model: keras.Model, layers: Sequence[keras.layers.Layer], replacements: Mapping[Any, Any]
) -> list[keras.layers.Layer]:
    """Return the clones of ``layers`` of a functional ``model``.

    ``replacements`` maps each operation of the model to the one called instead. The result is empty
    where these are no layers, as in a plain call of the model. Raises UnsupportedError where the
    clone cannot recompute them: Keras makes it of another class, or a new layer holds other layers
    than the original.
    """
    pairs = layers_for_layers(replacements)
    if not layers or not pairs:
        return []
    check_class_of_clone(model, replacements, what=repr(layers[0].path))
    would_not = f"keras.models.clone_model of {model.name!r} would not recompute {layers[0].path!r}"
    stands_for: dict[Any, Any] = {}
    for own, other in pairs:
        ours, others = layers_in(own), layers_in(other)
        if len(ours) != len(others) and not set(ours).isdisjoint(layers):
            raise UnsupportedError(
                f"{would_not}: the clone of {own.name!r} has {len(others) - 1} inner layers, and "
                f"the original has {len(ours) - 1}. {_INSTEAD}"
            )
        stands_for.update(zip(ours, others))
    return list(map(stands_for.__getitem__, layers))


def layers_for_layers(replacements: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the layers that run in place of layers: none where only shapes are computed."""
    return [
        (own, other) for own, other in replacements.items() if _is_layer(own) and _is_layer(other)
    ]


def _is_layer(operation: Any) -> bool:
    return isinstance(operation, keras.layers.Layer)
