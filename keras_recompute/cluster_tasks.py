"""The training tasks of a cluster, numbered: the chief, if there is one, and then the workers.

TensorFlow counts each job from 0. Messages, data shards and the files that only one process
writes need one number per process.
"""

from __future__ import annotations

from typing import Any

JOBS = ("chief", "worker")  # the jobs that train; others, such as "ps" and "evaluator", do not


def training_tasks(resolver: Any) -> list[tuple[str, int]]:
    """Return (job, index) of each training process in the cluster of a TensorFlow ``resolver``."""
    jobs = resolver.cluster_spec().as_dict()
    return [(job, index) for job in JOBS for index in range(len(jobs.get(job, ())))]


def task_number(resolver: Any) -> int:
    """Return the number of this process."""
    # In this order: Slurm's resolver knows its own task once the cluster was asked for.
    processes = training_tasks(resolver)
    return processes.index((resolver.task_type, resolver.task_id))
