"""Signals that end a run: each acts like Control-C, so that the run keeps its figures."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from types import FrameType
from typing import Callable, Iterator

# Control-C; kill and time limits; a closed terminal, for which Windows has no signal.
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
    """Raise Stopped in the block on the first signal, and ignore later ones.

    The figures are being written then. The value is a function after which the first signal is
    ignored too. A signal that is ignored already, as under ``nohup``, stays so. Python delivers
    signals to the main thread only; in another thread nothing changes.
    """
    can_stop, was_stopped = True, False

    def let_pass() -> None:
        nonlocal can_stop
        can_stop = False

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal was_stopped
        # Ignored here and not by the system: Python reports a signal that was pending then.
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
        # Once stopped, the process is about to end: another signal must not change its exit code.
        for number, handler in before.items() if not was_stopped else ():
            # None means that the handler was not set by Python.
            signal.signal(number, handler or signal.SIG_DFL)


def ignore_signals() -> None:
    """Ignore all of these signals from now on, since the process is about to end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
