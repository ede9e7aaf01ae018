"""The schedule of a pipeline as data: which stage runs when.

In training a pipeline of S stages has 2S *positions*. Position j is the forward pass of stage j for
j < S, else the backward pass of stage 2S-1-j. Inference has the S forward positions. Every schedule
runs microbatch m at position j at time ``period * m + j``. Schedules differ only in the period. At
equal times, later positions run first. So the order repeats after one period, for the next
microbatch. One repetition is a *turn*, which is one iteration of the pipeline's loop. In the first
and last turns some positions have no microbatch: the ramp-up and the ramp-down.

Sources: Graphcore, pipelined training; Huang et al. 2019, "GPipe", for Grouped; Narayanan et al.
2019, "PipeDream", for Interleaved.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from .pipelining_ops import PipelineSchedule


@dataclass(frozen=True)
class Action:
    """One stage's pass over one microbatch, printed as ``F0m2`` or ``B1m0``."""

    stage: int
    microbatch: int
    is_backward: bool = False

    def __str__(self) -> str:
        return f"{'B' if self.is_backward else 'F'}{self.stage}m{self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """The order of a pipeline of ``stages`` with a new microbatch every ``period``."""

    stages: int
    period: int
    trains: bool = True

    @classmethod
    def of(cls, kind: PipelineSchedule, stages: int, *, trains: bool = True) -> Schedule:
        """Return the schedule ``kind``, for training or for inference without backward passes."""
        positions = 2 * stages if trains else stages
        period = {
            PipelineSchedule.Grouped: 1,
            PipelineSchedule.Interleaved: 2,
            PipelineSchedule.Sequential: positions,
        }[kind]
        return cls(stages, period, trains)

    @property
    def positions(self) -> int:
        """The number of passes of each microbatch."""
        return 2 * self.stages if self.trains else self.stages

    @property
    def turn(self) -> tuple[int, ...]:
        """The positions in the order in which they run within one turn."""
        # Of positions at the same time the later one runs first: its microbatch is older.
        return tuple(sorted(range(self.positions), key=lambda j: (j % self.period, -j)))

    def lag(self, position: int) -> int:
        """Return the number of turns by which ``position`` lags behind the first.

        In turn t it has microbatch t - lag.
        """
        return position // self.period

    def turns(self, microbatches: int) -> int:
        """Return the number of turns that all ``microbatches`` take."""
        return microbatches + self.lag(self.positions - 1)

    def position_of(self, action: Action) -> int:
        """Return the position at which ``action`` runs."""
        return 2 * self.stages - 1 - action.stage if action.is_backward else action.stage

    def action(self, position: int, microbatch: int) -> Action:
        """Return the action at ``position`` for ``microbatch``."""
        is_backward = position >= self.stages
        return Action(
            2 * self.stages - 1 - position if is_backward else position, microbatch, is_backward
        )

    def waits(self, position: int, until: int) -> bool:
        """Return whether ``position``'s results for position ``until`` outlive the turn."""
        return self.turn.index(until) < self.turn.index(position)

    def stash_depth(self, stage: int) -> int:
        """Return the microbatches that ``stage`` starts between the two passes of one.

        A stash is a ring with that many slots, beside the copy that the backward pass reads. The
        depth is 2(S-1-s) for Grouped, S-1-s for Interleaved, 0 for Sequential.
        """
        return 2 * (self.stages - 1 - stage) // self.period

    def run_in_turns(self, microbatches: int) -> tuple[tuple[Action, ...], ...]:
        """Return the actions of each turn, in order."""
        turns = []
        for turn in range(self.turns(microbatches)):
            actions = []
            for position in self.turn:
                action = self.action(position, turn - self.lag(position))
                if 0 <= action.microbatch < microbatches:
                    actions.append(action)
            turns.append(tuple(actions))
        return tuple(turns)

    def actions(self, microbatches: int) -> tuple[Action, ...]:
        """Return all actions, in order."""
        return tuple(chain.from_iterable(self.run_in_turns(microbatches)))


def microbatch_multiple(kind: PipelineSchedule, stages: int, *, trains: bool) -> int:
    """Return the number that must divide the microbatches of one run.

    Source: Graphcore, Keras models.
    """
    if kind is PipelineSchedule.Sequential:
        return 1
    return 2 * stages if kind is PipelineSchedule.Grouped and trains else stages
