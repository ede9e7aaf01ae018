from .program_text import forward_backward, print_forward_backward, replay_count
from .records import (
    Equation,
    ForwardBackward,
    Letters,
    ProgramText,
    Residual,
    Value,
    constant_text,
    no_input_text,
    no_result_text,
    type_text,
)
from .residuals import print_saved_residuals, residuals, saved_residuals

__all__ = [
    "Equation",
    "ForwardBackward",
    "Letters",
    "ProgramText",
    "Residual",
    "Value",
    "constant_text",
    "forward_backward",
    "no_input_text",
    "no_result_text",
    "print_forward_backward",
    "print_saved_residuals",
    "replay_count",
    "residuals",
    "saved_residuals",
    "type_text",
]
