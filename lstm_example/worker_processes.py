"""The example in several processes that share the microbatches of each update."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.startup_lines import hide_startup_lines, load_tensorflow

from .arguments import sharing_problems
from .data import Text
from .options import AUTO, Options

if TYPE_CHECKING:
    from keras_recompute.distribute.cluster import Cluster

# Options that may differ between workers: where the first one writes, and what it prints.
_MAY_DIFFER = (
    "report",
    "json",
    "log",
    "force",
    "quiet",
    "text",
    "wait_seconds",
    "save",
    "save_every",
    "keep",
)
_SAYING_SECONDS = 20  # from noticing a lost worker to the end of the process that reports it


@dataclass(frozen=True)
class WorkerShare:
    """The part of a run that one worker computes: each n-th microbatch, counted from its number."""

    requested: Options  # of all processes together
    strategy: Any = None  # None where there is one process
    number: int = 0
    workers: int = 1

    def options(self) -> Options:
        """Return the options of this process, with its share of the microbatches."""
        requested = self.requested
        own = replace(
            requested,
            gradient_accumulation=requested.gradient_accumulation // self.workers,
            steps_per_epoch=requested.steps_per_epoch // self.workers,
        )
        if self.number:  # the first one reports
            own = replace(own, report=None, json=None, log=None, quiet=True)
        return own

    def data(self, microbatches: Iterator[Any]) -> Iterator[Any]:
        """Yield the microbatches of this process, dealt in turn."""
        yield from itertools.islice(microbatches, self.number, None, self.workers)


@contextlib.contextmanager
def join_cluster(options: Options, text: Text | None) -> Iterator[WorkerShare]:
    """Join the cluster of the environment, if asked to, for as long as the block lasts.

    Raises InvalidArgumentError if there is none or the microbatches cannot be shared, and
    ClusterError if a worker does not come, was started differently, or is lost.
    """
    if not options.distribute:
        yield WorkerShare(options)
        return
    from keras_recompute.distribute import join

    cluster = _find_cluster()
    workers = len(cluster.addresses)
    for why in sharing_problems(cluster.said_by, workers, options):
        raise InvalidArgumentError(why)
    shared_options = {
        name: value for name, value in vars(options).items() if name not in _MAY_DIFFER
    }
    shared_options["text"] = text and text.digest()
    with join(
        alike=shared_options,
        wait_seconds=options.wait_seconds,
        heartbeat_seconds=options.heartbeat_seconds,
    ) as strategy:
        yield WorkerShare(options, strategy, cluster.number, workers)


def writes_files(options: Options) -> bool:
    """Whether this process writes the files of the run; of several, only the first one does."""
    if not options.distribute:
        return True
    # The others must not even try their paths: the first one would find the files of the trial.
    return _find_cluster().number == 0


def _find_cluster() -> Cluster:
    """Return the cluster of the environment, whose resolver loads TensorFlow."""
    from keras_recompute.distribute.cluster import find_cluster

    with hide_startup_lines():
        cluster = find_cluster()
        load_tensorflow()
    return cluster


def start_workers(script: str, argv: Sequence[str], options: Options) -> int:
    """Run ``script`` with the command line ``argv`` in several processes; return the exit code."""
    from keras_recompute.distribute import launch

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--workers")
    # The workers get the same command line, without --workers.
    _, others = parser.parse_known_args(list(argv))
    command = [sys.executable, script, *others, "--distribute", AUTO]
    return launch(
        command, options.workers or 1, grace_seconds=options.heartbeat_seconds + _SAYING_SECONDS
    )
