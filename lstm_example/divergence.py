"""Detection of a training run that diverged, and the error that ends it. Runs on Python 3.8."""

from __future__ import annotations

import math

from keras_recompute.errors import RecomputeError

from .arguments import Options


class NonFiniteLossError(RecomputeError):
    """The loss or the gradient is not finite any more, so that going on would train nothing."""


def require_finite(
    done: int,
    options: Options,
    *,
    loss: float = 0.0,
    norm: float | None = None,
    validation_loss: float = 0.0,
) -> None:
    """Raise NonFiniteLossError if a figure of update ``done`` is infinite or not a number.

    The loss is that of the weights before the update. The gradient norm shows one update earlier
    than the loss that the new weights are useless. ``norm`` is None if unknown.
    """
    figures = {
        "the loss": loss,
        "the norm of the gradient": norm or 0.0,
        "the loss of the held-back text": validation_loss,
    }
    for what, value in figures.items():
        if not math.isfinite(value):
            step = done * options.gradient_accumulation
            raise NonFiniteLossError(
                f"{what} became {value} at update {done} (step {step}): lower --learning-rate "
                f"from {options.learning_rate:g}"
            )
