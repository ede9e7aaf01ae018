"""Limits of compilations for devices that are not here: their time and their memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class CompileLimits:
    """What one compilation may take; None is no limit.

    Attributes:
        seconds: In place of the ``timeout_seconds`` of a call.
        memory_bytes: Of the compiler's process, without its libraries' files.
    """

    seconds: float | None = None
    memory_bytes: int | None = None

    def apply_to(self, process: int) -> None:
        """Give the memory limit to the process of that number; it fails to allocate more."""
        if self.memory_bytes is not None:
            import resource  # not on Windows, where no compiler is either

            bound = self.memory_bytes, self.memory_bytes
            resource.prlimit(process, resource.RLIMIT_DATA, bound)


_NONE = CompileLimits()
_limits: ContextVar[CompileLimits] = ContextVar("limits", default=_NONE)


def current_limits() -> CompileLimits:
    """Return the limits of the context."""
    return _limits.get()


@contextmanager
def compile_limits(limits: CompileLimits) -> Iterator[None]:
    """Hold every compilation inside the context to ``limits``."""
    token = _limits.set(limits)
    try:
        yield
    finally:
        _limits.reset(token)
