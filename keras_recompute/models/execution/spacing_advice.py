"""Layers whose recomputation saves nothing, and the warning of checkpoints between such layers."""

from __future__ import annotations

from collections.abc import Iterable

import keras

from ...keras_backend import TORCH, current_backend
from ...user_code import warn_user
from ..keras_graph.call_graph import Call
from ..keras_graph.sections import Section

# Layers whose gradient needs their inputs and outputs alone.
_LAYERS = tuple(
    getattr(keras.layers, name)
    for name in ("Dense", "EinsumDense", "Add", "Reshape", "Flatten", "Permute", "Identity")
)
_ACTIVATIONS = ("linear", "tanh", "sigmoid")


def warn_of_spacing(model: keras.Model, calls: Iterable[Call]) -> None:
    """Warn that the checkpoints of ``model`` save no memory; ``calls`` are all its calls."""
    layers = sum(not call.is_checkpoint_layer for call in calls)
    # About the root of the number of layers takes the least memory (Chen et al. 2016, 4.1).
    spacing = max(2, round(layers**0.5))
    warn_user(
        f"the checkpoints of {model.name!r} save no memory: its gradients read only the values "
        f"that pass between sections, which are kept anyway. Of its {layers} layers, put a "
        f"checkpoint after about every {spacing}, or train the plain model. checkpointed(..., "
        "sample=batch) compares the two"
    )


def keeps_nothing_inside(section: Section) -> bool:
    """Whether ``section`` is one layer that is known to keep its inputs and outputs alone."""
    called = [call.operation for call in section.calls if not call.is_checkpoint_layer]
    return len(called) == 1 and keeps_only_inputs_and_outputs(called[0])


def keeps_only_inputs_and_outputs(layer: keras.Operation) -> bool:
    """Whether ``layer`` is known to keep its inputs and outputs alone for its gradient."""
    if type(layer) not in _LAYERS:
        return False
    # The plain layer may also keep a kernel that it has cast, dequantized or added LoRA's to.
    is_cast = layer.compute_dtype != layer.variable_dtype
    if is_cast or layer.quantization_mode or getattr(layer, "lora_enabled", False):
        return False
    # Beside the result of a relu JAX keeps a mask of its positive elements.
    known = (*_ACTIVATIONS, "relu") if current_backend() == TORCH else _ACTIVATIONS
    activation = getattr(layer, "activation", keras.activations.linear)
    return any(activation is getattr(keras.activations, name) for name in known)
