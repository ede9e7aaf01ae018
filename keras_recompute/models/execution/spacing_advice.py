"""Layers around which checkpoints save nothing, or next to nothing, and warnings of them."""

from __future__ import annotations

from collections.abc import Iterable

import keras

from ...keras_backend import JAX, TORCH, current_backend
from ...seams.keras.layers import layers_in
from ...user_code import warn_user
from ..keras_graph.call_graph import Call
from ..keras_graph.sections import Section

_NAMES = ("Dense", "EinsumDense", "Add", "Reshape", "Flatten", "Permute", "Identity", "Activation")
# Layers whose gradient needs their inputs and outputs alone, but for an activation.
_LAYERS = tuple(getattr(keras.layers, name) for name in _NAMES)
# The same, on PyTorch alone.
_ACTIVATION_LAYERS = tuple(
    getattr(keras.layers, name) for name in ("ReLU", "LeakyReLU", "ELU", "Softmax")
)
# Activations whose gradient reads their results alone, and so also at the end of another layer.
_BY_RESULTS = {
    JAX: ("linear", "tanh", "sigmoid", "exponential"),
    TORCH: ("linear", "tanh", "sigmoid", "exponential", "relu", "softmax", "log_softmax"),
}
# Activations that are one operation of PyTorch, whose gradient reads what it is given alone. JAX
# composes them of several, and keeps a value of each: beside a leaky_relu a mask.
_BY_ARGUMENTS = (
    *("relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "hard_silu", "glu"),
    *("hard_sigmoid", "hard_tanh", "hard_shrink", "soft_shrink", "softplus"),
)
# The share of the model's trainable weights, by their number, that makes it nearly all.
_NEARLY_ALL = 0.8
# A layer with fewer trainable weights is not spoken of: a transformer's block has as many.
_SEVERAL = 16


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


def warn_of_frozen_sections(model: keras.Model) -> None:
    """Warn that no gradient passes through what the checkpoints of ``model`` recompute."""
    warn_user(
        f"the checkpoints of {model.name!r} save no memory: no layer in front of the last of them "
        "has weights that train, so no gradient passes through these layers, and nothing of them "
        "is kept. Put checkpoints between layers that train, or train the plain model"
    )


def layer_of_blocks(calls: Iterable[Call]) -> keras.Layer | None:
    """Return the layer that holds nearly all trainable weights of ``calls``; None if none does.

    Layers of Keras and of this library are left out, as single operations. So are layers with
    recurrent ones inside, which checkpoints cut along time.
    """
    called = {call.operation for call in calls if isinstance(call.operation, keras.Layer)}
    weights = {layer: len(layer.trainable_weights) for layer in called}
    enough = max(_SEVERAL, _NEARLY_ALL * sum(weights.values()))
    for layer, count in weights.items():
        is_known = type(layer).__module__.startswith(("keras.", "keras_recompute."))
        if count >= enough and not is_known:
            is_cut = any(isinstance(each, keras.layers.RNN) for each in layers_in(layer))
            return None if is_cut else layer
    return None


def warn_of_blocks(model: keras.Model, layer: keras.Layer) -> None:
    """Warn that nearly all of ``model`` is inside ``layer``, where it has no checkpoints."""
    warn_user(
        f"the checkpoints of {model.name!r} save next to nothing: nearly all its weights are "
        f"inside {layer.name!r}, a {type(layer).__name__}, in which none of them stands. "
        "checkpointed(model, layers=...) recomputes layers inside one by one: give their names, "
        'or a pattern such as "block_*"'
    )


def keeps_nothing_inside(section: Section) -> bool:
    """Whether ``section`` is one layer that is known to keep its inputs and outputs alone."""
    called = [call.operation for call in section.calls if not call.is_checkpoint_layer]
    return len(called) == 1 and keeps_only_inputs_and_outputs(called[0])


def keeps_only_inputs_and_outputs(layer: keras.Operation) -> bool:
    """Whether ``layer`` is known to keep its inputs and outputs alone for its gradient."""
    is_torch = current_backend() == TORCH
    if type(layer) not in (*_LAYERS, *_ACTIVATION_LAYERS * is_torch):
        return False
    # The plain layer may also keep a kernel that it has cast, dequantized or added LoRA's to.
    is_cast = layer.compute_dtype != layer.variable_dtype
    if is_cast or layer.quantization_mode or getattr(layer, "lora_enabled", False):
        return False
    if getattr(layer, "threshold", 0):  # of a ReLU, which then keeps a mask
        return False
    known = _BY_RESULTS[current_backend()]
    if is_torch and type(layer) is keras.layers.Activation:
        known += _BY_ARGUMENTS
    activation = getattr(layer, "activation", keras.activations.linear)
    return any(activation is getattr(keras.activations, name) for name in known)
