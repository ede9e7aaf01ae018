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
        seconds: Its time, in place of a call's ``timeout_seconds``.
        memory_bytes: What its process may allocate; files of its libraries do not count.
    """

    seconds: float | None = None
    memory_bytes: int | None = None

    def apply_to(self, process: int) -> None:
        """Limit the memory of the process with that number: it cannot allocate more."""
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
