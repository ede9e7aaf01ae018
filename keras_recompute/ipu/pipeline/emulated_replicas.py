"""Replicas, copies of a model that train together, run one after the other in one program.

Every replica has its own microbatches. Weights and optimiser are equal in all replicas, so there is
one copy. The other state that a run changes belongs to each replica: statistics, metrics, and the
state of random generators. The program loads a replica's state before it runs the replica and
stores it afterwards. Between executions the model's own variables hold replica 0's state, as the
host sees it on an IPU.

Each replica draws its own random numbers, through its own word in the seed, unless the seed was
given or all were seeded identically.

Replicas whose batch normalisation shares statistics run ``together``, as one replica whose
microbatches are concatenated. So the statistics are those of all, while loss and metrics are
computed for each. Source: Graphcore, replication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ...engine import target_now
from ...engine.scan import SliceStore, get_all, put_all
from ...seams.keras.layers import backend_variable, mutable_state
from ..configuration.refusals import refuse

# Consecutive multiples are far apart as 32-bit words (Fibonacci hashing: Knuth, volume 3, 6.4).
_SEED_STRIDE = 0x9E3779B9


class Running(NamedTuple):
    """The replicas of a program under construction, and whether its code is common to all."""

    replicas: int
    are_equal: bool


_programs: list[Running] = []
_seeding = {"is identical": False}


def running() -> Running | None:
    """Return the replicas of the program under construction; None outside of one."""
    return _programs[-1] if _programs else None


def seed_replicas(*, identically: bool) -> None:
    """Set whether all replicas draw the same numbers, in programs that are compiled later."""
    _seeding["is identical"] = identically


def are_seeded_identically() -> bool:
    """Return whether all replicas draw the same numbers."""
    return _seeding["is identical"]


@dataclass(eq=False)
class Replicas:
    """The ``count`` replicas of ``model``, in runs of ``together`` replicas each.

    The model's metrics must be built. One replica adds nothing to a program.
    """

    model: keras.Model
    count: int
    together: int = 1
    _metrics: list[tf.Variable] = field(default_factory=list)
    _statistics: list[tf.Variable] = field(default_factory=list)
    # Seeds, each with whether all replicas start from it.
    _seeds: list[tuple[tf.Variable, bool]] = field(default_factory=list)
    # Of statistics and metrics; the axes are run, replica of the run, and the value's own.
    _copies: list[tf.Variable] = field(default_factory=list)
    # The metrics of the loaded run's replicas except its first.
    _lanes: list[list[tf.Variable]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the copies."""
        if self.count == 1:
            return
        self._metrics = list(map(backend_variable, self.model.metrics_variables))
        found = mutable_state(self.model)
        metrics = {v.ref() for v in self._metrics}
        for variable in map(backend_variable, found.variables):
            if variable.ref() not in metrics:
                self._statistics.append(variable)
        same = are_seeded_identically()
        for generator, is_given in found.generators:
            self._seeds.append((backend_variable(generator.state), is_given or same))
        if same and self.together > 1 and self._seeds:
            raise refuse(
                "experimental_identical_replicas",
                f"{self.together} replicas with common statistics",
            )
        self._copies = [tf.Variable(self._copies_of(v), trainable=False) for v in self._kept]
        for _ in range(self.together - 1):
            lane = [tf.Variable(v.read_value(), trainable=False) for v in self._metrics]
            self._lanes.append(lane)

    @property
    def runs(self) -> int:
        """The number of runs, one after the other, that all replicas take."""
        return self.count // self.together

    @property
    def has_all_metrics(self) -> bool:
        """Whether the model has built no metric since this was created."""
        return self.count == 1 or len(self._metrics) == len(self.model.metrics_variables)

    @property
    def _kept(self) -> list[tf.Variable]:
        """The model's variables that each replica has a copy of."""
        return [*self._statistics, *self._metrics]

    def equalize(self) -> None:
        """Give all replicas the values of the model's variables.

        An IPU does so when another program is loaded.
        """
        for variable, copy in zip(self._kept, self._copies):
            copy.assign(self._copies_of(variable))

    def equalize_metrics(self) -> None:
        """Give all replicas the values of the model's metrics, after a reset."""
        for variable, copy in zip(self._metrics, self._copies[len(self._statistics) :]):
            copy.assign(self._copies_of(variable))

    def each(self, run: Callable[..., Sequence[Any]], *state: Any) -> Any:
        """Return ``state`` after ``run(r, *state)`` for each run r of replicas.

        A run's replicas have their own state loaded. Called in a graph under construction.
        """
        if self.count == 1:
            with self._running(are_equal=True):
                return run(tf.constant(0), *state)
        pieces = [SliceStore(self.runs, tuple(copy.shape[1:]), copy.dtype) for copy in self._copies]
        # Every replica derives its seeds from the values before the first run.
        bases = [seed.read_value() for seed, _ in self._seeds]
        copies = _read(self._copies)
        # The host may have changed the variables of replica 0.
        own = [tf.concat([v.read_value()[None], c[0, 1:]], 0) for c, v in zip(copies, self._kept)]
        full = (piece.full(copy, target_now()) for piece, copy in zip(pieces, copies))
        stores = put_all(pieces, full, 0, own)

        def one_run(
            r: tf.Tensor, stores: list[Any], ends: list[tf.Tensor], state: Any
        ) -> tuple[Any, ...]:
            self._load_state(get_all(pieces, stores, r))
            for base, (seed, is_common) in zip(bases, self._seeds):
                offset = tf.cast(r, seed.dtype) * (0 if is_common else _SEED_STRIDE)
                seed.assign(tf.stack([base[0] + offset, base[1]]))
            with self._running(are_equal=False):
                state = tuple(run(r, *state))
            stores = put_all(pieces, stores, r, self._state())
            # The host sees replica 0, so the seeds after its run are kept.
            kept = []
            for (seed, _), end in zip(self._seeds, ends):
                kept.append(tf.where(r == 0, seed.read_value(), end))
            return r + 1, stores, kept, state

        _, stores, ends, state = tf.while_loop(
            lambda r, *_: r < self.runs,
            one_run,
            (tf.constant(0), stores, bases, state),
            parallel_iterations=1,
        )
        for p, store, copy, v in zip(pieces, stores, self._copies, self._kept):
            copy.assign(p.whole(store))
            v.assign(p.slice(p.whole(store), 0)[0])
        for end, (seed, _) in zip(ends, self._seeds):
            seed.assign(end)
        return state

    def shares(self, *joined: Any) -> Iterator[list[Any]]:
        """Yield the share of each replica of a run in the ``joined`` microbatches.

        ``joined`` are nests of tensors, or None. Until the next share, that replica's metrics are
        loaded.
        """
        if self.together == 1:
            yield list(joined)
            return
        for number in range(self.together):
            with self._with_metrics_of(number):
                yield [tf.nest.map_structure(partial(self._share, number), nest) for nest in joined]

    def _share(self, number: int, joined: tf.Tensor | None) -> tf.Tensor | None:
        """Return the share of replica ``number`` in the concatenated ``joined``."""
        return None if joined is None else tf.split(joined, self.together)[number]

    @contextmanager
    def _running(self, *, are_equal: bool) -> Iterator[None]:
        """Set what ``running`` returns until the context ends."""
        _programs.append(Running(self.count, are_equal))
        try:
            yield
        finally:
            _programs.pop()

    def updating(self) -> AbstractContextManager[None]:
        """Return a context for code that is common to all replicas, such as an optimiser's update.

        The values in it are equal in all replicas.
        """
        return self._running(are_equal=True)

    def metrics_of_each(self) -> list[dict[str, tf.Tensor]]:
        """Return the metrics' results of every replica, in a graph under construction."""
        if self.count == 1:
            return [self.model.get_metrics_result()]
        copies = _read(self._copies[len(self._statistics) :])
        found = []
        # Replica 0 comes last, so that the model's own metrics hold its values at the end.
        for r in reversed(range(self.count)):
            for variable, copy in zip(self._metrics, copies):
                variable.assign(copy[r // self.together, r % self.together])
            found.append(self.model.get_metrics_result())
        return found[::-1]

    def _load_state(self, rows: list[tf.Tensor]) -> None:
        """Load the state of a run's replicas."""
        for v, row in zip(self._kept, rows):
            v.assign(row[0])
        for number, lane in enumerate(self._lanes, 1):
            for v, row in zip(lane, rows[len(self._statistics) :]):
                v.assign(row[number])

    def _state(self) -> list[tf.Tensor]:
        """Return the state of a run's replicas."""
        of_metrics = []
        for column in zip(self._metrics, *self._lanes):
            of_metrics.append(tf.stack(_read(column)))
        return [*(v.read_value()[None] for v in self._statistics), *of_metrics]

    @contextmanager
    def _with_metrics_of(self, number: int) -> Iterator[None]:
        """Load the metrics of replica ``number`` of the run until the context ends."""
        if number == 0:
            yield
            return
        lane, before = self._lanes[number - 1], _read(self._metrics)
        for v, own in zip(self._metrics, lane):
            v.assign(own.read_value())
        yield
        for v, own, first in zip(self._metrics, lane, before):
            own.assign(v.read_value())
            v.assign(first)

    def _copies_of(self, variable: tf.Variable) -> tf.Tensor:
        """Return the value of ``variable`` for every run, and of a metric for every replica."""
        is_metric = any(variable is v for v in self._metrics)
        rows = (self.runs, self.together if is_metric else 1)
        return tf.tile(variable.read_value()[None, None], [*rows, *[1] * len(variable.shape)])


def _read(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    return [variable.read_value() for variable in variables]
