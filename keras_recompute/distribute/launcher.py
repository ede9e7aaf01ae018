"""A launcher of several workers on this machine, over loopback.

It serves to try a script that trains on a cluster, and to use all cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from ..errors import InvalidArgumentError
from .watcher import Watcher

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 30  # for the others to notice the lost worker by its heartbeat, and report it
_PORTS = range(20_000, 30_000)  # below the ephemeral ports, from 32,768 or 49,152 on
_OPEN_FILES = 32  # of this process, beside two for each worker
_SIGNALLED = 128  # plus the number of the signal, as shells count


def launch(
    command: Sequence[str],
    workers: int,
    *,
    restarts: int = 0,
    grace_seconds: float = _GRACE_SECONDS,
) -> int:
    """Run ``command`` as ``workers`` processes of one cluster; return 0 or a failure's exit code.

    Each worker finds the cluster in its TF_CONFIG. Their output appears here line by line, with the
    worker's number in front except for the first. When one fails, the others have ``grace_seconds``
    to notice and are then ended. After a failure all are started again, at most ``restarts`` times:
    a script with a backup resumes. No process is left running.

    Raises InvalidArgumentError for an impossible number of workers or restarts, and if the system
    cannot start them.

    Examples:
        >>> import sys
        >>> script = "import os; assert 'TF_CONFIG' in os.environ"
        >>> kr.distribute.launch([sys.executable, "-c", script], workers=2)
        0
    """
    check_numbers(workers=workers, restarts=restarts)
    _check_open_files(workers)
    for attempt in range(restarts + 1):
        code = _run_once(command, workers, grace_seconds)
        if code == 0 or attempt == restarts:
            break
        _say(f"restarting all {workers} workers ({attempt + 1} of {restarts})")
    return code


def check_numbers(*, workers: int, restarts: int) -> None:
    """Raise InvalidArgumentError for an impossible number of workers or restarts."""
    for name, number, least in (("workers", workers, 1), ("restarts", restarts, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise InvalidArgumentError(f"{name}={number!r}: give a whole number from {least} on")


def _check_open_files(workers: int) -> None:
    """Raise InvalidArgumentError if this process may not open the pipes of so many workers.

    The workers have the same limit, and each is connected to every other.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    needed, (allowed, _) = _OPEN_FILES + 2 * workers, resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and needed > allowed:
        raise InvalidArgumentError(
            f"workers={workers} need {needed} open files, and the system allows {allowed}: start "
            "fewer, or raise ulimit -n"
        )


def _run_once(command: Sequence[str], workers: int, grace_seconds: float) -> int:
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(workers)]
    if len(addresses) < workers:
        raise InvalidArgumentError(
            f"workers={workers}: this machine has only {len(addresses)} free ports: start fewer"
        )
    with _start_workers(command, addresses) as workers_there:
        code, deadline = 0, float("inf")
        # Polled, since waiting for one worker would hide the failure of another.
        while None in (codes := workers_there.codes()) and time.monotonic() <= deadline:
            failed = [(number, ended) for number, ended in enumerate(codes) if ended]
            if failed and not code:
                (number, code), deadline = failed[0], time.monotonic() + grace_seconds
                _say(f"worker {number} of {workers} {_exit_description(code)}")
            time.sleep(_POLL_SECONDS)
        code = code or next(filter(None, codes), 0)
    return _SIGNALLED - code if code < 0 else code


class _Workers:
    """The running processes, the threads that forward their output, and their watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.processes: list[subprocess.Popen[str]] = []
        self.readers: list[threading.Thread] = []

    def start(self, command: Sequence[str], addresses: Sequence[str], number: int) -> None:
        task = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": number}}
        # Unbuffered, so that lines are forwarded when they are printed.
        environment = {**os.environ, "TF_CONFIG": json.dumps(task), "PYTHONUNBUFFERED": "1"}
        pipes: Any = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
        }
        process = subprocess.Popen(command, env=environment, text=True, errors="replace", **pipes)
        self.watcher.begins(process.pid)
        self.processes.append(process)
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            self.readers.append(
                threading.Thread(target=_forward_lines, args=(source, target, number), daemon=True)
            )
            self.readers[-1].start()

    def codes(self) -> list[int | None]:
        """Return the exit code of each worker, None while it runs."""
        before = [process.returncode for process in self.processes]
        codes = [process.poll() for process in self.processes]
        for process, was in zip(self.processes, before):
            # Reported at once, since the system may reuse the process id.
            if was is None and process.returncode is not None:
                self.watcher.ends(process.pid)
        return codes

    def end(self) -> None:
        """End the running workers and wait for all."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.watcher.ends(process.pid)
        for reader in self.readers:
            reader.join(5)
        self.watcher.stop()


@contextlib.contextmanager
def _start_workers(command: Sequence[str], addresses: Sequence[str]) -> Iterator[_Workers]:
    """Start a process per address and forward its output; end all at the end of the block.

    Raises InvalidArgumentError if the system cannot start them.
    """
    with _exit_on_signals():
        with _explain_start_failures(f"{len(addresses)} workers"):
            workers = _Workers(Watcher())
        try:
            for number in range(len(addresses)):
                with _explain_start_failures(f"worker {number} of {len(addresses)}"):
                    workers.start(command, addresses, number)
            yield workers
        finally:
            workers.end()


@contextlib.contextmanager
def _explain_start_failures(what: str) -> Iterator[None]:
    """Raise InvalidArgumentError if a process or a thread cannot be started."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidArgumentError(
            f"{what} cannot be started ({why}): start fewer workers, or another program"
        ) from error


def _forward_lines(source: IO[str], target: IO[str], number: int) -> None:
    front = f"[{number}] " if number else ""
    with source:
        for line in source:
            with contextlib.suppress(OSError, ValueError):  # the reader of this output is gone
                target.write(front + line)
                target.flush()


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP, so that no worker outlives the launcher."""
    is_told = threading.current_thread() is threading.main_thread()
    signals = [
        s for s in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if s is not None and is_told
    ]

    def end(number: int, _: Any) -> None:
        raise SystemExit(_SIGNALLED + number)

    before = {number: signal.signal(number, end) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _free_ports(count: int) -> list[int]:
    """Return so many ports of this machine that are free now.

    Ephemeral ports are avoided: the system could give one to another process before a worker
    listens, seconds later.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        with contextlib.suppress(OSError):  # the port is taken
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as each:
                each.bind(("", port))
            found.append(port)
    return found


def _exit_description(code: int) -> str:
    return (
        f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    )


def _say(text: str) -> None:
    print(f"keras_recompute.distribute: {text}", file=sys.stderr, flush=True)
