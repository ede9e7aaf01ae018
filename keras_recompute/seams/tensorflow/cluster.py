"""Private parts of TensorFlow's strategies: the heartbeat timeout, and leaving their scopes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tensorflow.python.distribute import distribute_lib, multi_worker_util

# Imported from here because its own module moves between releases.
from tensorflow.python.distribute.collective_all_reduce_strategy import coordination_config_pb2
from tensorflow.python.eager import context


def watch_heartbeats(resolver: Any, *, heartbeat_seconds: float, register_seconds: float) -> None:
    """Set the timeouts of the coordination service in the cluster of ``resolver``.

    To be called before the strategy is made, which keeps these settings.
    """
    spec = resolver.cluster_spec()
    jobs = [
        coordination_config_pb2.CoordinatedJob(name=job, num_tasks=spec.num_tasks(job))
        for job in sorted(spec.jobs)
    ]
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(spec),
        coordinated_jobs=jobs,
        heartbeat_timeout_in_ms=round(1000 * heartbeat_seconds),
        cluster_register_timeout_in_ms=round(1000 * register_seconds),
        shutdown_barrier_timeout_in_ms=round(1000 * heartbeat_seconds),
    )


@contextlib.contextmanager
def leave_strategy_scopes() -> Iterator[None]:
    """Run the block outside of any strategy: an assignment reaches the copies of all replicas."""
    distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
    try:
        yield
    finally:
        distribute_lib._pop_per_thread_mode()
