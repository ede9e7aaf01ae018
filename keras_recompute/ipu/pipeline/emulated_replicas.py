"""Copies of a model that train together: replicas, one after the other inside one program (Graphcore: replication).

Every replica has microbatches of its own. Weights and optimiser are the same in all of them, so there is one of each; what
else a run of a model changes, each replica has for itself: statistics, metrics, the states of random numbers. The
program puts a replica's in place before it runs the replica, and keeps it after. Between executions the model's own
variables hold replica 0's, as the host sees it on an IPU.

A replica draws numbers of its own by a word of its own in the seed, unless the seed was given or all were seeded identically.

Replicas whose batch normalisation has common statistics run ``together``, as one whose microbatches are joined: statistics
are then those of all, while the loss and the metrics are computed for each alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ...engine.passes import target_now
from ...engine.pieces import Pieces
from ...seams.keras.layers import backend_variable, mutable_state
from ..configuration.refusals import refuse

_APART = 0x9E3779B9  # of words that follow one another by it no two are near, see Knuth on Fibonacci hashing


class Running(NamedTuple):
    """What a program under construction runs: how many replicas, and whether what is written is equal in all of them."""

    replicas: int
    are_equal: bool


_programs: list[Running] = []
_seeding = {"is identical": False}


def running() -> Running | None:
    """Return what the program under construction runs; None outside of one."""
    return _programs[-1] if _programs else None


def seed_replicas(*, identically: bool) -> None:
    """Have replicas draw the same numbers from now on, or each its own; for programs that are made after it."""
    _seeding["is identical"] = identically


def are_seeded_identically() -> bool:
    """Whether all replicas draw the same numbers."""
    return _seeding["is identical"]


@dataclass(eq=False)
class Replicas:
    """The ``count`` replicas of ``model``, whose metrics are built, in ``runs`` of so many together.

    With one replica nothing is added to a program.
    """

    model: keras.Model
    count: int
    together: int = 1
    _metrics: list[tf.Variable] = field(default_factory=list)
    _statistics: list[tf.Variable] = field(default_factory=list)
    _seeds: list[tuple[tf.Variable, bool]] = field(default_factory=list)  # and whether all replicas start from it
    _copies: list[tf.Variable] = field(default_factory=list)  # of statistics and metrics: run, replica of the run, value
    _lanes: list[list[tf.Variable]] = field(default_factory=list)  # the metrics of the others of the run that is in place

    def __post_init__(self) -> None:
        """Make the copies."""
        if self.count == 1:
            return
        self._metrics = [backend_variable(v) for v in self.model.metrics_variables]
        found = mutable_state(self.model)
        metrics = {v.ref() for v in self._metrics}
        self._statistics = [v for v in map(backend_variable, found.variables) if v.ref() not in metrics]
        same = are_seeded_identically()
        self._seeds = [(backend_variable(generator.state), is_given or same) for generator, is_given in found.generators]
        if same and self.together > 1 and self._seeds:
            raise refuse("experimental_identical_replicas", f"{self.together} replicas with common statistics")
        self._copies = [tf.Variable(self._repeated(v), trainable=False) for v in self._kept]
        self._lanes = [[tf.Variable(v.read_value(), trainable=False) for v in self._metrics] for _ in range(self.together - 1)]

    @property
    def runs(self) -> int:
        """How many runs, one after the other, all replicas take."""
        return self.count // self.together

    @property
    def has_all_metrics(self) -> bool:
        """Whether no metric of the model has been built since this was made."""
        return self.count == 1 or len(self._metrics) == len(self.model.metrics_variables)

    @property
    def _kept(self) -> list[tf.Variable]:
        return [*self._statistics, *self._metrics]

    def equalize(self) -> None:
        """Give all replicas what the model's variables hold, as an IPU does when another program is loaded."""
        for variable, copy in zip(self._kept, self._copies):
            copy.assign(self._repeated(variable))

    def equalize_metrics(self) -> None:
        """Give all replicas what the model's metrics hold, as when they are reset."""
        for variable, copy in zip(self._metrics, self._copies[len(self._statistics) :]):
            copy.assign(self._repeated(variable))

    def each(self, run: Callable[..., Sequence[Any]], *state: Any) -> Any:
        """Return ``state`` after ``run(r, *state)`` for each run r of replicas, with what is theirs in place.

        Called in a graph under construction.
        """
        if self.count == 1:
            with self._running(are_equal=True):
                return run(tf.constant(0), *state)
        pieces = [Pieces(self.runs, tuple(copy.shape[1:]), copy.dtype) for copy in self._copies]
        bases = [seed.read_value() for seed, _ in self._seeds]
        copies = [copy.read_value() for copy in self._copies]
        own = [tf.concat([v.read_value()[None], c[0, 1:]], 0) for c, v in zip(copies, self._kept)]  # the host may have set it
        stores = [p.put(p.full(c, target_now()), 0, first) for p, c, first in zip(pieces, copies, own)]

        def one_run(r: tf.Tensor, stores: list[Any], ends: list[tf.Tensor], state: Any) -> tuple[Any, ...]:
            self._put_in_place([p.get(store, r) for p, store in zip(pieces, stores)])
            for base, (seed, is_common) in zip(bases, self._seeds):
                apart = tf.cast(r, seed.dtype) * (0 if is_common else _APART)
                seed.assign(tf.stack([base[0] + apart, base[1]]))
            with self._running(are_equal=False):
                state = tuple(run(r, *state))
            stores = [p.put(store, r, rows) for p, store, rows in zip(pieces, stores, self._taken())]
            ends = [tf.where(r == 0, seed.read_value(), end) for (seed, _), end in zip(self._seeds, ends)]
            return r + 1, stores, ends, state

        _, stores, ends, state = tf.while_loop(
            lambda r, *_: r < self.runs, one_run, (tf.constant(0), stores, bases, state), parallel_iterations=1
        )
        for p, store, copy, v in zip(pieces, stores, self._copies, self._kept):
            copy.assign(p.whole(store))
            v.assign(p.of(p.whole(store), 0)[0])
        for end, (seed, _) in zip(ends, self._seeds):
            seed.assign(end)
        return state

    def shares(self, *joined: Any) -> Iterator[list[Any]]:
        """Yield for each replica of a run its share of ``joined`` microbatches, nests of tensors or None.

        Until the next one the metrics in place are that replica's.
        """
        if self.together == 1:
            yield list(joined)
            return
        for number in range(self.together):
            with self._in_place(number):
                yield [tf.nest.map_structure(partial(self._share, number), nest) for nest in joined]

    def _share(self, number: int, joined: tf.Tensor | None) -> tf.Tensor | None:
        return None if joined is None else tf.split(joined, self.together)[number]

    @contextmanager
    def _running(self, *, are_equal: bool) -> Iterator[None]:
        _programs.append(Running(self.count, are_equal))
        try:
            yield
        finally:
            _programs.pop()

    def updating(self) -> AbstractContextManager[None]:
        """Enter what is written for all replicas at once, on values that are equal in them: an optimiser's update."""
        return self._running(are_equal=True)

    def metrics_of_each(self) -> list[dict[str, tf.Tensor]]:
        """Return the metrics' results of every replica, in a graph under construction."""
        if self.count == 1:
            return [self.model.get_metrics_result()]
        copies = [copy.read_value() for copy in self._copies[len(self._statistics) :]]
        found = []
        for r in reversed(range(self.count)):  # so that the model's own are replica 0's in the end
            for variable, copy in zip(self._metrics, copies):
                variable.assign(copy[r // self.together, r % self.together])
            found.append(self.model.get_metrics_result())
        return found[::-1]

    def _put_in_place(self, rows: list[tf.Tensor]) -> None:
        for v, row in zip(self._kept, rows):
            v.assign(row[0])
        for number, lane in enumerate(self._lanes, 1):
            for v, row in zip(lane, rows[len(self._statistics) :]):
                v.assign(row[number])

    def _taken(self) -> list[tf.Tensor]:
        of_metrics = [tf.stack([v.read_value() for v in column]) for column in zip(self._metrics, *self._lanes)]
        return [*(v.read_value()[None] for v in self._statistics), *of_metrics]

    @contextmanager
    def _in_place(self, number: int) -> Iterator[None]:
        if number == 0:
            yield
            return
        lane, before = self._lanes[number - 1], [v.read_value() for v in self._metrics]
        for v, own in zip(self._metrics, lane):
            v.assign(own.read_value())
        yield
        for v, own, first in zip(self._metrics, lane, before):
            own.assign(v.read_value())
            v.assign(first)

    def _repeated(self, variable: tf.Variable) -> tf.Tensor:
        is_metric = any(variable is v for v in self._metrics)
        rows = (self.runs, self.together if is_metric else 1)
        return tf.tile(variable.read_value()[None, None], [*rows, *(1 for _ in variable.shape)])
