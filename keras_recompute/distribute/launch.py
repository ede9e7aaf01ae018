"""Several workers on this machine, over loopback: to try a script that trains on a cluster, and to use all its cores."""

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

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 30  # the others notice a lost worker themselves, by its heartbeat, and say so
_PORTS = range(20_000, 30_000)  # systems hand out ports from 32,768 on, or from 49,152
_SIGNALLED = 128  # plus the number of the signal, as shells count


def launch(command: Sequence[str], workers: int, *, restarts: int = 0, grace_seconds: float = _GRACE_SECONDS) -> int:
    """Run ``command`` as so many ``workers`` of one cluster; return 0, or the exit code of the first one that failed.

    Each finds the cluster in its TF_CONFIG. What they print comes out here line by line, that of all but the first with its
    number in front. When one fails the others have ``grace_seconds`` to notice it, and are ended then. After a failure all are
    started again, ``restarts`` times at most: a script with a backup goes on from there. Nothing is left running.

    Raises InvalidArgumentError for a number of workers or restarts that cannot be.

    Examples:
        >>> import sys
        >>> kr.distribute.launch([sys.executable, "-c", "import os; assert 'TF_CONFIG' in os.environ"], workers=2)
        0
    """
    for name, number, least in (("workers", workers, 1), ("restarts", restarts, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise InvalidArgumentError(f"{name}={number!r}: give a whole number from {least} on")
    for attempt in range(restarts + 1):
        code = _run_once(command, workers, grace_seconds)
        if code == 0 or attempt == restarts:
            break
        _say(f"starting all {workers} workers again ({attempt + 1} of {restarts})")
    return code


def _run_once(command: Sequence[str], workers: int, grace_seconds: float) -> int:
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(workers)]
    with _started(command, addresses) as processes:
        code, deadline = 0, float("inf")
        while None in (codes := [process.poll() for process in processes]) and time.monotonic() <= deadline:
            failed = [(number, ended) for number, ended in enumerate(codes) if ended]
            if failed and not code:
                (number, code), deadline = failed[0], time.monotonic() + grace_seconds
                _say(f"worker {number} of {workers} {_how(code)}")
            time.sleep(_POLL_SECONDS)
        code = code or next(filter(None, codes), 0)
    return _SIGNALLED - code if code < 0 else code


@contextlib.contextmanager
def _started(command: Sequence[str], addresses: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process for each address, hand on what they print, and end them all at the end."""
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    try:
        with _ended_by_signals():
            for number in range(len(addresses)):
                task = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": number}}
                environment = {**os.environ, "TF_CONFIG": json.dumps(task), "PYTHONUNBUFFERED": "1"}
                pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
                process = subprocess.Popen(command, env=environment, text=True, errors="replace", **pipes)
                processes.append(process)
                for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                    readers.append(threading.Thread(target=_hand_on, args=(source, target, number), daemon=True))
                    readers[-1].start()
            yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in readers:
            reader.join(5)


def _hand_on(source: IO[str], target: IO[str], number: int) -> None:
    front = f"[{number}] " if number else ""
    with source:
        for line in source:
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more
                target.write(front + line)
                target.flush()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the launcher as Control-C does, so that no worker is left behind."""
    is_told = threading.current_thread() is threading.main_thread()
    signals = [s for s in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if s is not None and is_told]

    def end(number: int, _: Any) -> None:
        raise SystemExit(_SIGNALLED + number)

    before = {number: signal.signal(number, end) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _free_ports(count: int) -> list[int]:
    """Return so many ports of this machine that nobody listens at now.

    Not those that the system hands out: it could give one to any other process before a worker listens, seconds later.
    """
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                break
            each = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            with contextlib.suppress(OSError):  # somebody listens there
                each.bind(("", port))
                found.append(port)
    return found


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _say(text: str) -> None:
    print(f"keras_recompute.distribute: {text}", file=sys.stderr, flush=True)
