"""Signals that ask a run to end: each does what Control-C does, so that what was found out so far
is kept.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from types import FrameType
from typing import Callable, Iterator

# Control-C; kill, and time limits; a terminal that went away, which Windows does not tell.
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Stopped(KeyboardInterrupt):
    """A signal asked the run to end; ``str`` is its name."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def raise_on_signals() -> Iterator[Callable[[], None]]:
    """Raise Stopped in the block when the first signal comes, and let all others pass: the figures
    are being written then.

    The value is a function after which the first one passes too. A signal that is ignored already
    stays so, as under ``nohup``. Python tells signals to the main thread only; in another one
    nothing changes.
    """
    can_stop, was_stopped = True, False

    def let_pass() -> None:
        nonlocal can_stop
        can_stop = False

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal was_stopped
        if can_stop:
            was_stopped = True
            let_pass()
            raise Stopped(number)

    is_told = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS if is_told}
    before = {
        number: handler for number, handler in before.items() if handler is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, stop)
    try:
        yield let_pass
    finally:
        # A process that was asked to end is about to: another signal must not change how.
        for number, handler in before.items() if not was_stopped else ():
            # None: set by another language than Python
            signal.signal(number, handler or signal.SIG_DFL)


def ignore_signals() -> None:
    """Let no signal end the process any more, which is about to end by itself."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
