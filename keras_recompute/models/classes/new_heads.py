"""Warnings about new models on layers of a checkpointed model, such as a new head.

Keras knows the first call of a layer, ``layer.output``, and that is the one in the plain model.
What is built on it runs the plain graph: the checkpoints are not in it, and nothing is recomputed.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any

import keras

from ...errors import RecomputeWarning
from ...keras_backend.gradient_demand import gradient_may_be_asked
from ...seams.keras.graph import observe_new_models, observe_runs
from ..execution.section_runner import TrainedModel

_checkpointed: weakref.WeakKeyDictionary[keras.layers.Layer, str] = weakref.WeakKeyDictionary()


def watch_for_new_heads(model: keras.Model) -> None:
    """Warn once about each plain model made of layers of ``model`` later, when it trains."""
    _look_at_new_models()
    for layer in model.layers:
        if layer.variables:
            _checkpointed[layer] = model.name


@functools.cache
def _look_at_new_models() -> None:
    observe_new_models(_look_at)


def _look_at(new: Any) -> None:
    shared_layers = [layer for layer in new.layers if layer in _checkpointed]
    # A single layer that is shared, such as an embedding, is no part of a model.
    if len(shared_layers) < 2 or isinstance(new, TrainedModel):
        return
    owner, reference = _checkpointed[shared_layers[0]], weakref.ref(new)
    is_said: list[bool] = []

    def note() -> None:
        model = reference()
        if is_said or model is None or not gradient_may_be_asked():
            return
        is_said.append(True)
        warnings.warn(
            f"{model.name!r} runs {len(shared_layers)} layers of {owner!r} and recomputes nothing, "
            "because it is built on outputs of inner layers, which have no checkpoints. Give it "
            f"to keras_recompute.checkpointed(model, ...), or build it on the output of {owner!r} "
            "by keras_recompute.Model(inputs, outputs)",
            RecomputeWarning,
            stacklevel=2,
        )

    observe_runs(new, note)
