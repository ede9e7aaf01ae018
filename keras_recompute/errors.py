"""Every error this project raises on purpose.

A message says what is wrong, with which value, why, and what to do. Each class also derives from the built-in
exception that a caller would expect, so that ``except ValueError`` keeps working.
"""


class RecomputeError(Exception):
    """The root: ``except RecomputeError`` catches all that this project raises on purpose."""

    # AutoGraph raises an error of a function that it converted again by its class only where that is made by one message,
    # which it takes from this.
    __init__ = Exception.__init__


class InvalidArgumentError(RecomputeError, ValueError):
    """An argument has a value that cannot work."""


class UnsupportedError(RecomputeError, NotImplementedError):
    """A request that is understood but that this project does not carry out."""


class InvalidPlanError(RecomputeError, ValueError):
    """A plan breaks a rule of the machine that is to run it."""


class InvalidProgramError(RecomputeError, RuntimeError):
    """A program that the engine produced failed its own check: a defect of the engine, never of the user."""


class ReportError(RecomputeError, ValueError):
    """A report or a compiled program could not be read or written."""


class TargetError(RecomputeError, RuntimeError):
    """The requested target (an IPU, the IPU model) is not available on this machine."""


class RecomputeWarning(UserWarning):
    """Recomputation works, but not as well as it could, or not at all where it was asked for."""
