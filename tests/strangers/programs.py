"""The table of all programs, filled by the modules that hold them."""

from . import functional_models, own_calls, trainers
from .program import PROGRAMS

__all__ = ["PROGRAMS", "functional_models", "own_calls", "trainers"]
