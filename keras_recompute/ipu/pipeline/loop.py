"""A pipeline's schedule as one loop of the compiled program.

Each turn of the loop runs every position of the schedule once, in order. In the first and last
turns some positions have no microbatch and are skipped by a branch at run time: the ramp-up and the
ramp-down. So the size of the program depends on the number of stages alone. A value that one
position passes to another is a value of the turn or, if the turn ends in between, of the loop's
state. The values that a stage keeps for its backward pass are in its stash.

The branch also separates the positions. A compiler moves no work out of it and does not merge the
work of two. Each branch takes the log of the earlier ones, so they run in the order in which they
are emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from ...engine import target_now
from ...engine.graph import opaque_false
from ...engine.scan import SliceStore, empty_all, whole_all
from ...op_names import backward_scope, forward_scope
from .accumulation import Reduction, accumulate
from .schedule import Schedule
from .stage_program import StageProgram
from .stash import Stash

_HANDED_ON, _GRADIENTS, _KEPT = "handed on", "gradients", "kept"
_SHARED = -1


@dataclass(frozen=True, eq=False)
class PipelineLoop:
    """A loop that runs ``microbatches`` through ``stages`` in the order of ``schedule``.

    In training the outputs of the last stage are two scalars: the loss that is differentiated, and
    the loss that is reported.
    """

    schedule: Schedule
    stages: tuple[StageProgram, ...]
    microbatches: int
    reduction: Reduction = Reduction.SUM

    @cached_property
    def stashes(self) -> tuple[Stash, ...]:
        """The stash of each stage; there are none in inference."""
        if not self.schedule.trains:
            return ()
        stashes = []
        for s, stage in enumerate(self.stages):
            depth = self.schedule.stash_depth(s)
            stashes.append(Stash(depth, stage.kept(with_data=depth > 0)))
        return tuple(stashes)

    @property
    def log(self) -> SliceStore:
        """The log of what ran, in order: position times ``microbatches``, plus the microbatch."""
        return SliceStore(self.schedule.positions * self.microbatches, (), tf.int32)

    def run(
        self, feed: Sequence[tf.Tensor], first: tf.Tensor, variables: Sequence[tf.Variable] = ()
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
        """Return the accumulated gradients, the reports of the last stage, and the log.

        There is a gradient for each of ``variables``. ``feed`` holds the leaves of the stacked
        microbatches, and the loop begins with microbatch ``first``. Reports are stacked too.
        """
        slots = self._slots(variables)
        # Under Sequential a position always has a microbatch. XLA must not know that, because it
        # would remove the branches that separate the positions.
        inputs = _LoopInputs(
            self, feed, first, variables, always=tf.logical_not(opaque_false([feed[0]]))
        )

        def turn(t: tf.Tensor, state: _State) -> tuple[tf.Tensor, _State]:
            work = _Turn(inputs, t, state)
            for position in self.schedule.turn:
                work.take(position)
            return t + 1, work.state(state["waiting"])

        start = self._initial_state(variables, slots)
        # The last position lags behind the first, so there are more turns than microbatches.
        turns = self.schedule.turns(self.microbatches)
        _, end = tf.while_loop(
            lambda t, _: t < turns, turn, (tf.constant(0), start), parallel_iterations=1
        )
        gradients = []
        for number, v in enumerate(variables):
            parts = [end["sums"][slot] for slot in slots if slot[1] == number]
            gradients.append(tf.add_n(parts) if parts else tf.zeros(v.shape, v.dtype))
        reported = whole_all(self.reports, end["reports"])
        return gradients, reported, self.log.whole(end["log"])

    def _initial_state(
        self, variables: Sequence[tf.Variable], slots: Sequence[tuple[int, int]]
    ) -> _State:
        """Return the loop's state before the first turn: nothing has run, and all sums are zero."""
        count, log = tf.constant(0), self.log.empty(target_now())
        waiting = {}
        for key, specs in self._waiting().items():
            waiting[key] = _zeros(specs)
        rings = [stash.empty() for stash in self.stashes]
        sums = {}
        for slot in slots:
            variable = variables[slot[1]]
            sums[slot] = tf.zeros(variable.shape, variable.dtype)
        return {
            "count": count,
            "log": log,
            "waiting": waiting,
            "rings": rings,
            "sums": sums,
            "reports": empty_all(self.reports, target_now()),
        }

    @property
    def reports(self) -> list[SliceStore]:
        """The collected outputs of the last stage: in training the reported loss, else all."""
        reported = self.stages[-1].outputs[1 if self.schedule.trains else 0 :]
        return [SliceStore(self.microbatches, tuple(spec.shape), spec.dtype) for spec in reported]

    def slot(self, stage: int, variable: int) -> tuple[int, int]:
        """Return the key of an accumulator.

        A variable that stages share has one accumulator. For a running mean each stage has its own,
        because the stages are at different microbatches.
        """
        return (stage if self.reduction is Reduction.RUNNING_MEAN else _SHARED, variable)

    def _slots(self, variables: Sequence[tf.Variable]) -> list[tuple[int, int]]:
        """Return the keys of all accumulators."""
        number = _numbers(variables)
        used: dict[tuple[int, int], None] = {}
        for s, stage in enumerate(self.stages):
            for variable in stage.variables:
                if variable.ref() in number:
                    used[self.slot(s, number[variable.ref()])] = None
        return list(used)

    def _waiting(self) -> dict[tuple[str, int], tuple[tf.TensorSpec, ...]]:
        """Return the specs of the values that wait from one turn to the next, by key."""
        schedule, last = self.schedule, len(self.stages) - 1
        waiting: dict[tuple[str, int], tuple[tf.TensorSpec, ...]] = {}
        for s, stage in enumerate(self.stages):
            backward = 2 * len(self.stages) - 1 - s
            if s < last and schedule.waits(s, s + 1):
                waiting[_HANDED_ON, s] = stage.outputs
            if schedule.trains and not self.stashes[s].depth and schedule.waits(s, backward):
                waiting[_KEPT, s] = self.stashes[s].specs
            if schedule.trains and s and schedule.waits(backward, backward + 1):
                waiting[_GRADIENTS, s] = stage.gradients
        return waiting


def _numbers(variables: Sequence[tf.Variable]) -> dict[Any, int]:
    """Return the number of each of ``variables``, by reference."""
    return {variable.ref(): number for number, variable in enumerate(variables)}


def _zeros(like: Sequence[Any]) -> list[tf.Tensor]:
    return [tf.zeros(each.shape, each.dtype) for each in like]


# The loop's state by name; the values are nests of tensors.
_State = dict[str, Any]


@dataclass(frozen=True, eq=False)
class _LoopInputs:
    """The loop-invariant values that the turns read."""

    loop: PipelineLoop
    feed: Sequence[tf.Tensor]
    first: tf.Tensor
    variables: Sequence[tf.Variable]
    always: tf.Tensor


class _Turn:
    """One turn of the loop under construction.

    ``take`` emits a position, and ``state`` is the loop's state after it.
    """

    def __init__(self, inputs: _LoopInputs, t: tf.Tensor, state: _State) -> None:
        self._inputs, self._loop, self._t = inputs, inputs.loop, t
        self._count, self._log = state["count"], state["log"]
        self._waiting = dict(state["waiting"])
        self._rings, self._sums = list(state["rings"]), dict(state["sums"])
        self._reports = list(state["reports"])

    def state(self, kept: Any) -> _State:
        """Return the state after the turn, with the waiting values of the keys in ``kept``."""
        return {
            "count": self._count,
            "log": self._log,
            "waiting": {key: self._waiting[key] for key in kept},
            "rings": self._rings,
            "sums": self._sums,
            "reports": self._reports,
        }

    def take(self, position: int) -> None:
        """Emit the work of ``position``."""
        action = self._loop.schedule.action(position, 0)
        m = self._t - self._loop.schedule.lag(position)
        (self._backward if action.is_backward else self._forward)(action.stage, m, position)

    def _forward(self, s: int, m: tf.Tensor, position: int) -> None:
        """Emit the forward pass of stage ``s`` over microbatch ``m``."""
        stage, number, feed = self._loop.stages[s], self._inputs.first + m, self._inputs.feed
        received = self._waiting.get((_HANDED_ON, s - 1), [])

        def work() -> list[tf.Tensor]:
            with tf.name_scope(forward_scope(f"stage-{s}")):
                return stage.forward(received, feed, number)

        outputs, saved = stage.outputs_and_saved(self._branch(position, m, work, stage.distinct))
        self._waiting[_HANDED_ON, s] = outputs
        if s == len(self._loop.stages) - 1:
            self._report(m, outputs)
        if self._loop.schedule.trains:
            self._keep(s, m, list(map(received.__getitem__, stage.kept_received)), saved)

    def _keep(
        self, s: int, m: tf.Tensor, received: Sequence[tf.Tensor], saved: Sequence[tf.Tensor]
    ) -> None:
        """Store what the backward pass of stage ``s`` needs of microbatch ``m``."""
        stash, stage, number = self._loop.stashes[s], self._loop.stages[s], self._inputs.first + m
        if not stash.depth:
            self._waiting[_KEPT, s] = [*received, *saved]
            return
        kept = [*received, *(self._inputs.feed[n][number] for n in stage.kept_data), *saved]
        # The count is never negative, so this adds 0. It makes the write depend on the earlier
        # reads of the ring, which XLA would otherwise copy.
        self._rings[s] = stash.put(self._rings[s], kept, m + tf.minimum(self._count, 0))

    def _report(self, m: tf.Tensor, outputs: Sequence[tf.Tensor]) -> None:
        """Collect the outputs of the last stage."""
        pieces, place = self._loop.reports, tf.clip_by_value(m, 0, self._loop.microbatches - 1)
        reported = outputs[len(outputs) - len(pieces) :]
        # Without a microbatch the slot gets its own value back.
        there = self._is_there(m)
        reports = []
        for description, store, value in zip(pieces, self._reports, reported):
            old = description.get(store, place)
            reports.append(description.put(store, place, tf.where(there, value, old)))
        self._reports = reports

    def _backward(self, s: int, m: tf.Tensor, position: int) -> None:
        """Emit the backward pass of stage ``s`` over microbatch ``m``."""
        stage, stash, incoming = self._loop.stages[s], self._loop.stashes[s], self._incoming(s)
        rings, waiting = self._rings[s], self._waiting.get((_KEPT, s), [])

        def work() -> list[tf.Tensor]:
            with tf.name_scope(backward_scope(f"stage-{s}")):
                feed, number = list(self._inputs.feed), self._inputs.first + m
                kept = iter(waiting)
                if stash.depth:
                    first = len(stage.kept_received)
                    of_data = range(first, first + len(stage.kept_data))
                    kept = iter(stash.take(rings, m, but=of_data))
                    # As with the feed, a microbatch's data is sliced where it is read.
                    feed, number = [None] * stage.leaves, stash.place(m)
                    for n, ring in zip(stage.kept_data, of_data):
                        feed[n] = stash.whole(rings, ring)
                received: list[Any] = [None] * stage.received
                for n in stage.kept_received:
                    received[n] = next(kept)
                before, of_variables = stage.backward(received, feed, number, list(kept), incoming)
            return [*(g for g in before if g is not None), *of_variables]

        found = self._branch(position, m, work, (*stage.gradients, *stage.variables))
        self._waiting[_GRADIENTS, s] = found[: len(stage.gradients)]
        self._accumulate(s, m, found[len(stage.gradients) :])

    def _incoming(self, s: int) -> list[tf.Tensor | None]:
        """Return the gradient of each output of stage ``s``.

        Of the losses only the first is differentiated.
        """
        if s == len(self._loop.stages) - 1:
            return [tf.ones((), self._loop.stages[s].outputs[0].dtype), None]
        found = iter(self._waiting[_GRADIENTS, s + 1])
        has_gradient = self._loop.stages[s + 1].received_gradients
        return [next(found) if each else None for each in has_gradient]

    def _accumulate(self, s: int, m: tf.Tensor, gradients: Sequence[tf.Tensor]) -> None:
        """Add the gradients of stage ``s`` to their accumulators."""
        reduction = self._loop.reduction
        number = _numbers(self._inputs.variables)
        slots = []
        for variable, gradient in zip(self._loop.stages[s].variables, gradients):
            if variable.ref() not in number:
                continue
            slot = self._loop.slot(s, number[variable.ref()])
            total = accumulate(reduction, self._sums[slot], gradient, m)
            # A running mean, unlike a sum, changes when a missing microbatch contributes zero.
            if reduction is Reduction.RUNNING_MEAN:
                total = tf.where(self._is_there(m), total, self._sums[slot])
            self._sums[slot] = total
            slots.append(slot)
        if slots:
            # The next position depends on the sums, so the gradients are freed before it runs.
            sums = list(map(self._sums.__getitem__, slots))
            self._count += tf.cast(opaque_false(sums), tf.int32)

    def _branch(
        self, position: int, m: tf.Tensor, work: Callable[[], list[tf.Tensor]], like: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Return ``work()`` if microbatch ``m`` exists, else zeros; log that it ran."""
        count, log, entry = self._count, self._log, position * self._loop.microbatches + m

        def run() -> list[tf.Tensor]:
            return [*work(), count + 1, self._loop.log.put(log, count, entry)]

        def skip() -> list[tf.Tensor]:
            return [*_zeros(like), count, log]

        *results, self._count, self._log = tf.cond(self._is_there(m), run, skip)
        return results

    def _is_there(self, m: tf.Tensor) -> tf.Tensor:
        """Return whether microbatch ``m`` exists."""
        return self._inputs.always & (m >= 0) & (m < self._loop.microbatches)
