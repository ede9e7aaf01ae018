"""A watcher process that ends the workers of a launcher which died, however it died.

The launcher holds the only end of a pipe to the watcher. It writes a line for each worker that it
starts ("+PID") and for each that ended ("-PID"). When the launcher dies, even by SIGKILL, the
system closes the pipe. The workers that are left are asked to end, and killed two seconds later.
This works on every system, while a signal on the parent's death is specific to Linux. Loads no
TensorFlow.
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
    """The watcher as its launcher sees it. Starting it raises OSError if the system refuses."""

    def __init__(self) -> None:
        # In a session of its own, since Control-C and a closed terminal would end it while the
        # launcher handles them.
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
        )

    def begins(self, worker: int) -> None:
        """Watch the process ``worker``: it is ended if this process dies."""
        self._tell(f"+{worker}")

    def ends(self, worker: int) -> None:
        """Stop watching ``worker``, whose process id may be reused once it is waited for."""
        self._tell(f"-{worker}")

    def stop(self) -> None:
        """End the watcher, and with it the workers that are still watched."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the watcher was killed
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def end_workers_at_eof(lines: Iterable[str]) -> None:
    """End the workers that ``lines`` name once there are no more lines."""
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
    """Send a signal to each worker, 0 for none, and drop the workers that no longer exist."""
    for worker in list(workers):
        try:
            os.kill(worker, number)
        except OSError:
            workers.discard(worker)


if __name__ == "__main__":
    end_workers_at_eof(sys.stdin)
