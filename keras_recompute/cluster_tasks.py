"""The processes of a cluster that train, in the order of their numbers: the chief, if there is one, and then the workers.

TensorFlow counts each job from 0; messages, shares of the data and files that one process writes need one number for each.
"""

from __future__ import annotations

from typing import Any

JOBS = ("chief", "worker")  # those whose processes train


def training_tasks(resolver: Any) -> list[tuple[str, int]]:
    """Return the job of each process of the cluster of a ``resolver`` of TensorFlow's, and its index in that job."""
    jobs = resolver.cluster_spec().as_dict()
    return [(job, index) for job in JOBS for index in range(len(jobs.get(job, ())))]


def task_number(resolver: Any) -> int:
    """Return the number of this process."""
    processes = training_tasks(resolver)  # before the task is asked for: Slurm's resolver finds it here
    return processes.index((resolver.task_type, resolver.task_id))
