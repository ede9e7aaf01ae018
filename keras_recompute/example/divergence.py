"""A training whose figures are no numbers any more, and what ends it. Runs on Python 3.8."""

from __future__ import annotations

import math

from ..errors import RecomputeError
from .arguments import Options


class NonFiniteLossError(RecomputeError):
    """The loss or the gradient is no number any more; to go on would train nothing."""


def require_finite(
    done: int,
    options: Options,
    *,
    loss: float = 0.0,
    norm: float | None = None,
    validation_loss: float = 0.0,
) -> None:
    """Raise NonFiniteLossError where a figure of update ``done`` is infinite or no number.

    An update with such a norm of the gradient leaves no weights to save, though its loss, which is
    that of the weights before, is a number. Without a ``norm`` nothing tells.
    """
    figures = {
        "the loss": loss,
        "the norm of the gradient": norm or 0.0,
        "the loss of the text that is held back": validation_loss,
    }
    for what, value in figures.items():
        if not math.isfinite(value):
            step = done * options.gradient_accumulation
            raise NonFiniteLossError(
                f"{what} became {value} at update {done} (step {step}): lower --learning-rate (it "
                f"is {options.learning_rate:g})"
            )
