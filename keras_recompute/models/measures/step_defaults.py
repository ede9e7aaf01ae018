"""What a training step is made of where the model says it, and defaults where it does not."""

from __future__ import annotations

from typing import Any

import keras

from ...seams.keras.training import build_for_fit
from .batch_specs import batch_spec


def step_parts(
    model: keras.Model, inputs: Any, targets: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...], str]:
    """Return the optimizer, built, the types and shapes of targets, and both in words.

    ``inputs`` is a nest of types and shapes. ``targets`` are nests of arrays or specs. A model that
    is not compiled makes no use of them: it is trained by SGD, and by the squares of its outputs.
    """
    compiled = getattr(model, "optimizer", None) is not None
    targets = targets if compiled and getattr(model, "loss", None) is not None else ()
    loss = "its loss" if targets else "the squares of its outputs as the loss"
    optimizer = model.optimizer if compiled else keras.optimizers.SGD()
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    kind = type(optimizer).__name__
    how = f"with its {kind}" if compiled else f"with {kind}, as it is not compiled"
    specs = keras.tree.map_structure(batch_spec, targets)
    if specs:
        build_for_fit(model, (inputs, *specs))  # its metrics
    return optimizer, specs, f"a step {how}, and {loss}"


def reason_of_optimizer(optimizer: Any) -> str | None:
    """Return why updates wait for all gradients; None if each waits for its own."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return "loss scaling checks them first"
    if getattr(optimizer, "gradient_accumulation_steps", None):
        return "they are accumulated"
    if getattr(optimizer, "global_clipnorm", None):
        return "they are clipped by their global norm"
    return None
