"""``join``, which makes this process a worker of its cluster while a block lasts."""

from __future__ import annotations

import contextlib
import platform
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ..cluster_tasks import JOBS, training_tasks
from ..errors import ClusterError, InvalidArgumentError
from .cluster import Cluster, find_cluster
from .rendezvous import rendezvous

_TASK = re.compile(rf"/job:({'|'.join(JOBS)})/(?:replica:0/)?task:(\d+)")


@contextlib.contextmanager
def join(
    *,
    alike: Mapping[str, Any] | None = None,
    wait_seconds: float = 300,
    heartbeat_seconds: float = 10,
    options: Any = None,
) -> Iterator[Any]:
    """Join the cluster that TF_CONFIG, Slurm or Kubernetes describes, while the block lasts.

    The value is a ``MultiWorkerMirroredStrategy``. Models made in its ``scope()`` train on all
    workers (see ``docs/distribute.md``). At the end of the block the workers wait for each other.
    Must be called before anything else is done with TensorFlow.

    Args:
        alike: Values by name that must be equal on all workers: arguments, sizes, file names.
            Versions are always compared.
        wait_seconds: How long a worker waits for the others to come.
        heartbeat_seconds: Seconds without a heartbeat after which a worker counts as lost; the same
            on all workers.
        options: ``tf.distribute.experimental.CommunicationOptions``, to choose between ring and
            NCCL.

    Raises:
        InvalidArgumentError: There is no cluster, or one that cannot work: TF_CONFIG does not parse
            or has no such task, or a port is taken.
        ClusterError: A worker did not come, was started differently, or was lost.

    Examples:
        >>> with kr.distribute.join(alike={"seed": 0}) as strategy:  # outside of a cluster
        ...     pass
        Traceback (most recent call last):
            ...
        keras_recompute.errors.InvalidArgumentError: this process belongs to no cluster: ...
    """
    for name, seconds in (("wait_seconds", wait_seconds), ("heartbeat_seconds", heartbeat_seconds)):
        if not seconds > 0:
            raise InvalidArgumentError(f"{name}={seconds!r}: give a number of seconds above zero")
    import tensorflow as tf

    from ..seams.tensorflow.cluster import watch_heartbeats

    cluster = find_cluster()
    # A worker sends heartbeats by its own setting and the chief times them by its own, so both must
    # be equal.
    facts = {**_versions(), "heartbeat_seconds": heartbeat_seconds, **(alike or {})}
    rendezvous(cluster, facts, wait_seconds=wait_seconds)
    watch_heartbeats(
        cluster.resolver, heartbeat_seconds=heartbeat_seconds, register_seconds=wait_seconds
    )
    with _preserving_signals(), _naming_lost_workers(cluster):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster.resolver, options)
    with _naming_lost_workers(cluster):
        yield strategy
        # A last collective, so that no worker leaves while others still need it.
        strategy.reduce("SUM", tf.zeros(()), axis=None)


def _versions() -> dict[str, str]:
    import keras
    import tensorflow as tf

    ours = sys.modules[__name__.partition(".")[0]].__version__
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "python": python,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras-recompute": ours,
    }


@contextlib.contextmanager
def _preserving_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM, which TensorFlow replaces by one that ends nothing."""
    is_told = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if is_told else None
    yield
    if is_told:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextlib.contextmanager
def _naming_lost_workers(cluster: Cluster) -> Iterator[None]:
    """Raise ClusterError in place of TensorFlow's several errors for an unreachable worker."""
    import tensorflow as tf

    try:
        yield
    except (
        tf.errors.UnavailableError,
        tf.errors.DeadlineExceededError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.FailedPreconditionError,
        tf.errors.InternalError,
        tf.errors.UnknownError,
    ) as error:
        # The same error classes are raised for faults of the user's program, which must pass.
        if not re.search("[Cc]ollective|[Cc]oordination|[Hh]eartbeat|gRPC", str(error)):
            raise
        if "Collective instance" in str(error):
            raise ClusterError(
                f"the workers run different programs, so their collectives do not match: {error}"
            ) from error
        lost = _lost_worker(cluster, str(error))
        raise ClusterError(
            f"{lost} was lost: restart the workers to continue from the last backup"
        ) from error


def _lost_worker(cluster: Cluster, message: str) -> str:
    named = {(job, int(index)) for job, index in _TASK.findall(message)}
    found = {
        number
        for number, process in enumerate(training_tasks(cluster.resolver))
        if process in named
    } - {cluster.number}
    if found:
        return cluster.name(min(found))
    return cluster.name(0) if "Heartbeat" in message and not cluster.is_chief else "a worker"
