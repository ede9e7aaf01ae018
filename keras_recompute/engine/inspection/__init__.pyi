from .program_text import forward_backward, print_forward_backward, replay_count
from .records import Equation, ForwardBackward, ProgramText, Residual, Value
from .residuals import print_saved_residuals, residuals, saved_residuals

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
