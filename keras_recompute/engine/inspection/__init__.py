"""The inspection of a function: what it keeps, what it repeats, and its two programs."""

from .program_text import (
    Equation,
    ForwardBackward,
    ProgramText,
    Value,
    forward_backward,
    print_forward_backward,
    replay_count,
)
from .residuals import Residual, print_saved_residuals, residuals, saved_residuals

__all__ = [
    "Equation",
    "ForwardBackward",
    "ProgramText",
    "Residual",
    "Value",
    "forward_backward",
    "print_forward_backward",
    "print_saved_residuals",
    "replay_count",
    "residuals",
    "saved_residuals",
]
