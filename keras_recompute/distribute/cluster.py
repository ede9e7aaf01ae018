"""The cluster that this process belongs to, from TF_CONFIG, Slurm or Kubernetes."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..cluster_tasks import JOBS, task_number, training_tasks
from ..errors import InvalidArgumentError

# Variables of a Kubernetes Job, which users set as docs/distribute.md says.
KUBERNETES = ("KERAS_RECOMPUTE_WORKERS", "KERAS_RECOMPUTE_SERVICE", "JOB_COMPLETION_INDEX")
_DIGITS = 5  # of a number of processes that there may be
# The port of each process, where Slurm or Kubernetes starts one per machine. Further processes on a
# machine take the next ports.
PORT = 8888


@dataclass(frozen=True)
class Cluster:
    """Addresses of all processes, chief first, the number of this one, and the resolver."""

    addresses: tuple[str, ...]
    number: int
    resolver: Any
    said_by: str  # where it was found

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files that are written once."""
        return self.number == 0

    def name(self, number: int) -> str:
        """Return the name of a process in messages."""
        return f"worker {number} of {len(self.addresses)} ({self.addresses[number]})"


def find_cluster(environment: Mapping[str, str] = os.environ) -> Cluster:
    """Return the cluster that ``environment`` describes.

    Raises InvalidArgumentError if it describes none, or one that cannot work.
    """
    # Errors are found before TensorFlow is loaded, which takes seconds.
    if "TF_CONFIG" in environment:
        _check(environment["TF_CONFIG"])
    elif "SLURM_PROCID" not in environment and KUBERNETES[0] in environment:
        addresses, index = _indexed_job(environment)
    elif "SLURM_PROCID" not in environment:
        raise InvalidArgumentError(
            "this process belongs to no cluster: neither TF_CONFIG, SLURM_PROCID nor "
            f"{KUBERNETES[0]} is set. Start workers on this machine by python3 -m "
            "keras_recompute.distribute --workers N SCRIPT. For several machines use srun or a "
            "Kubernetes Job, or set TF_CONFIG"
        )
    import tensorflow as tf

    resolvers = tf.distribute.cluster_resolver
    if "TF_CONFIG" in environment:
        return _from_resolver(resolvers.TFConfigClusterResolver(), "TF_CONFIG")
    if "SLURM_PROCID" in environment:
        try:
            # The resolver counts GPUs by nvidia-smi, and fails without it and without GPUs.
            without_gpus = (
                {}
                if shutil.which("nvidia-smi")
                else {"gpus_per_node": 2**16, "gpus_per_task": 1, "auto_set_gpu": False}
            )
            return _from_resolver(
                resolvers.SlurmClusterResolver(port_base=PORT, **without_gpus), "SLURM_PROCID"
            )
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            raise InvalidArgumentError(
                f"Slurm's variables describe no cluster: {error}. Start the script by srun"
            ) from None
    spec = tf.train.ClusterSpec({"worker": addresses})
    return _from_resolver(
        resolvers.SimpleClusterResolver(spec, task_type="worker", task_id=index), KUBERNETES[0]
    )


def _check(text: str) -> None:
    """Raise InvalidArgumentError unless ``text`` is a TF_CONFIG as TensorFlow documents it."""
    example = (
        '{"cluster": {"worker": ["host0:port", "host1:port"]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:  # of brackets in brackets
        raise InvalidArgumentError(
            f"TF_CONFIG={text!r:.200} is not JSON ({error}): give {example}"
        ) from None
    jobs = config.get("cluster") if isinstance(config, dict) else None
    task = config.get("task") if isinstance(config, dict) else None
    if (
        not isinstance(jobs, dict)
        or not isinstance(task, dict)
        or not all(map(_is_addresses, jobs.values()))
    ):
        raise InvalidArgumentError(
            f"TF_CONFIG={text!r:.200} lacks a cluster of addresses, or a task: give {example}"
        )
    kind, index = task.get("type"), task.get("index")
    if kind not in JOBS or set(jobs) - set(JOBS):
        others = sorted({str(kind), *jobs} - set(JOBS))
        raise InvalidArgumentError(
            f"TF_CONFIG names the jobs {others!s:.200}: use only {' and '.join(JOBS)}"
        )
    for address, count in Counter(chain.from_iterable(jobs.values())).items():
        if count > 1:
            raise InvalidArgumentError(
                f"TF_CONFIG gives two processes the address {address!r:.200}: give each process "
                "its own"
            )
    there = len(jobs.get(kind, ()))
    if type(index) is not int or not 0 <= index < there:
        raise InvalidArgumentError(
            f"TF_CONFIG says that this is task {index!r:.80} of {kind!r}, and has {there} of "
            "these, numbered from 0"
        )


def _is_addresses(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_address, value))


def _is_address(value: Any) -> bool:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return (
        bool(host)
        and port.isascii()
        and port.isdigit()
        and len(port) <= 5
        and 0 < int(port) < 2**16
    )


def _indexed_job(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the addresses of all processes of a Kubernetes Job, and this one's number."""
    missing = [name for name in KUBERNETES if not environment.get(name)]
    if missing:
        raise InvalidArgumentError(
            f"{KUBERNETES[0]} is set and {missing[0]} is not: see the Job in docs/distribute.md"
        )
    count, service, index = map(environment.__getitem__, KUBERNETES)
    are_numbers = all(
        each.isascii() and each.isdigit() and len(each) <= _DIGITS for each in (count, index)
    )
    if not are_numbers or int(index) >= int(count):
        raise InvalidArgumentError(
            f"{KUBERNETES[0]}={count:.80} and {KUBERNETES[2]}={index:.80}: the second must be "
            f"from 0 to below the first, with at most {_DIGITS} digits"
        )
    # A pod of an Indexed Job is named after the Job and its index.
    job = environment.get("HOSTNAME", "").rpartition("-")[0]
    return [f"{job}-{number}.{service}:{PORT}" for number in range(int(count))], int(index)


def _from_resolver(resolver: Any, said_by: str) -> Cluster:
    spec = resolver.cluster_spec()
    addresses = tuple(spec.task_address(job, index) for job, index in training_tasks(resolver))
    return Cluster(addresses, task_number(resolver), resolver, said_by)
