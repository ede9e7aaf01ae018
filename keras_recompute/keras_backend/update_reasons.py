"""Which of Keras's optimizers need all gradients before their first update."""

from __future__ import annotations

from typing import Any

import keras


def reason_of_optimizer(optimizer: Any) -> str | None:
    """Return why updates wait for all gradients; None if each waits for its own."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return "loss scaling checks them first"
    if getattr(optimizer, "gradient_accumulation_steps", None):
        return "they are accumulated"
    if getattr(optimizer, "global_clipnorm", None):
        return "they are clipped by their global norm"
    return None
