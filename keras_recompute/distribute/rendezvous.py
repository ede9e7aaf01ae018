"""A rendezvous of all processes of a cluster, with a timeout, before TensorFlow connects them.

TensorFlow waits forever, ignoring signals, for a process that never comes, and trains even if two
processes were given different arguments. So the first process listens at its address for a line of
JSON from each of the others, compares it with its own, and answers. Then the address is free for
TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ClusterError, InvalidArgumentError
from .cluster import Cluster

_LONGEST_LINE = 2**20
_RETRY_SECONDS, _READ_SECONDS = 0.1, 5.0

Facts = Mapping[str, Any]  # values by name that all processes must share, as JSON can write them


def rendezvous(cluster: Cluster, facts: Facts, *, wait_seconds: float) -> None:
    """Return when all processes of ``cluster`` have come and sent equal ``facts``.

    Raises ClusterError in each of them if one does not come within ``wait_seconds`` or sends other
    facts, and InvalidArgumentError if the address of this one is taken.
    """
    deadline = time.monotonic() + wait_seconds
    said = json.loads(json.dumps(facts, default=str))
    if cluster.is_chief:
        _host_rendezvous(cluster, said, deadline, wait_seconds)
    else:
        with _listen(cluster):  # finds out now whether the address is taken
            pass
        _join_host(cluster, said, deadline, wait_seconds)


def _host_rendezvous(cluster: Cluster, facts: Facts, deadline: float, wait_seconds: float) -> None:
    missing = set(range(1, len(cluster.addresses)))
    problem = ""
    with contextlib.ExitStack() as stack, _listen(cluster) as listener:
        visitors = []
        while missing and not problem:
            try:
                # A timeout of 0 would make the socket non-blocking.
                listener.settimeout(max(deadline - time.monotonic(), 0.001))
                visitor = stack.enter_context(listener.accept()[0])
            except TimeoutError:
                names = ", ".join(cluster.name(number) for number in sorted(missing))
                problem = f"{names} did not connect within {wait_seconds:g} s"
                break
            try:
                # A stranger that connects and sends nothing must not block the others.
                visitor.settimeout(_READ_SECONDS)
                number, count, theirs = _read(visitor)
                if type(number) is not int or not isinstance(theirs, dict):
                    continue
            except (OSError, ValueError, TypeError, RecursionError):
                continue  # not one of us
            visitors.append(visitor)
            if count != len(cluster.addresses):
                expected = len(cluster.addresses)
                problem = (
                    f"worker {number} has {count} workers in its cluster where worker 0 has "
                    f"{expected}"
                )
            elif number not in missing:
                problem = f"two processes claim to be worker {number}"
            else:
                missing.remove(number)
                problem = _difference(facts, theirs, cluster.name(number))
        for visitor in visitors:
            with contextlib.suppress(OSError):
                _write(visitor, problem)
                visitor.recv(
                    1
                )  # closing second leaves this address free at once, without TIME_WAIT
    if problem:
        raise ClusterError(problem)


def _join_host(cluster: Cluster, facts: Facts, deadline: float, wait_seconds: float) -> None:
    host, _, port = cluster.addresses[0].rpartition(":")
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ClusterError(f"{cluster.name(0)} did not connect within {wait_seconds:g} s")
        try:
            with socket.create_connection(
                (host.strip("[]"), int(port)), timeout=left
            ) as connection:
                # A margin, since the host reports missing workers only when its own time is over.
                connection.settimeout(left + 5)
                _write(connection, [cluster.number, len(cluster.addresses), facts])
                problem = _read(connection)
        # The host is not listening yet, or ended before it answered.
        except (OSError, ValueError, RecursionError):
            time.sleep(_RETRY_SECONDS)
            continue
        if problem:
            raise ClusterError(str(problem))
        return


@contextlib.contextmanager
def _listen(cluster: Cluster) -> Iterator[socket.socket]:
    """Listen at the port of this process, on all networks of the machine, as TensorFlow will."""
    port = cluster.addresses[cluster.number].rpartition(":")[2]
    family = socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # A worker that is started again must not wait for the old connection's TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", int(port)))
        except (OSError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"{cluster.said_by} gives {cluster.name(cluster.number)} a port that it cannot "
                f"listen at ({error}): choose a free port of this machine"
            ) from None
        listener.listen(len(cluster.addresses))
        yield listener


def _difference(ours: Facts, theirs: Facts, name: str) -> str:
    for key in sorted({*ours, *theirs}):
        if ours.get(key) != theirs.get(key):
            return (
                f"{name} has {key} {theirs.get(key)!r} where worker 0 has {ours.get(key)!r}: "
                "start all workers alike"
            )
    return ""


def _write(connection: socket.socket, value: Any) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def _read(connection: socket.socket) -> Any:
    with connection.makefile("rb") as file:
        return json.loads(file.readline(_LONGEST_LINE))
