"""Ends the workers of a launcher that was ended itself, in whatever way: a process of its own,
without TensorFlow.

The launcher holds the only end of a pipe that leads here, and writes a line for each worker that it
starts ("+PID") and for each that ended ("-PID"). Where the launcher is gone, even by SIGKILL, the
system closes the pipe. What is still there then is asked to end, and ended two seconds later. That
works on every system, where a signal for the parent's death is Linux's alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

_GRACE_SECONDS = 2
_POLL_SECONDS = 0.05


class Watcher:
    """The process, as its launcher sees it. Starting it raises OSError where the system refuses."""

    def __init__(self) -> None:
        # Not in the launcher's session: Control-C and a terminal that goes away are for the
        # launcher to handle, which may be killed while it does.
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
        )

    def begins(self, worker: int) -> None:
        """Have the process ``worker`` ended, should this one be gone."""
        self._tell(f"+{worker}")

    def ends(self, worker: int) -> None:
        """Leave ``worker`` alone, which is about to be waited for: its number may be another's."""
        self._tell(f"-{worker}")

    def stop(self) -> None:
        """End the watching. The workers that are not said to have ended are ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody ended the watcher
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def end_workers_at_eof(lines: Iterable[str]) -> None:
    """End the workers that ``lines`` name, once there are no more lines."""
    workers: set[int] = set()
    for line in lines:
        number = int(line[1:])
        (workers.add if line[0] == "+" else workers.discard)(number)
    _signal(workers, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    while workers and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        _signal(workers, 0)
    _signal(workers, getattr(signal, "SIGKILL", signal.SIGTERM))


def _signal(workers: set[int], number: int) -> None:
    """Send a signal, 0 for none, to each, and forget those that are gone."""
    for worker in list(workers):
        try:
            os.kill(worker, number)
        except OSError:
            workers.discard(worker)


if __name__ == "__main__":
    end_workers_at_eof(sys.stdin)
