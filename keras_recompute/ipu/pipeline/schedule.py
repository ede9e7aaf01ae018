"""When which stage of a pipeline runs, as data.

A pipeline of S stages has 2S *positions* in training: position j is the forward pass of stage j for j < S, else the
backward pass of stage 2S-1-j. (Inference has the S forward ones.) All schedules run microbatch m at position j at time
``period * m + j``; they differ in the period alone, and within one time later positions run first. So the order repeats
after one period, for the next microbatch. One such repetition is a *turn*: what the pipeline's loop does. In the first
and last turns some positions have no microbatch, which is the ramp-up and the ramp-down.

Sources: Graphcore, pipelined training; Huang et al. 2019, "GPipe", for Grouped; Narayanan et al. 2019, "PipeDream", for
Interleaved.
"""

from __future__ import annotations

from dataclasses import dataclass

from .pipelining_ops import PipelineSchedule


@dataclass(frozen=True)
class Action:
    """One stage's pass over one microbatch. Printed as: ``F0m2``, ``B1m0``."""

    stage: int
    microbatch: int
    is_backward: bool = False

    def __str__(self) -> str:
        return f"{'B' if self.is_backward else 'F'}{self.stage}m{self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """The order of a pipeline of ``stages`` stages whose microbatches follow one another by ``period``."""

    stages: int
    period: int
    trains: bool = True

    @classmethod
    def of(cls, kind: PipelineSchedule, stages: int, *, trains: bool = True) -> Schedule:
        """Return the schedule ``kind`` in training, or in inference, where there are no backward passes."""
        positions = 2 * stages if trains else stages
        period = {PipelineSchedule.Grouped: 1, PipelineSchedule.Interleaved: 2, PipelineSchedule.Sequential: positions}[kind]
        return cls(stages, period, trains)

    @property
    def positions(self) -> int:
        """The number of passes that each microbatch goes through."""
        return 2 * self.stages if self.trains else self.stages

    @property
    def turn(self) -> tuple[int, ...]:
        """The positions in the order in which they run within one turn."""
        return tuple(sorted(range(self.positions), key=lambda j: (j % self.period, -j)))

    def lag(self, position: int) -> int:
        """Return by how many turns ``position`` is behind the first one: in turn t it has microbatch t - lag."""
        return position // self.period

    def turns(self, microbatches: int) -> int:
        """Return how many turns all of ``microbatches`` take."""
        return microbatches + self.lag(self.positions - 1)

    def position_of(self, action: Action) -> int:
        """Return the position at which ``action`` runs."""
        return 2 * self.stages - 1 - action.stage if action.is_backward else action.stage

    def action(self, position: int, microbatch: int) -> Action:
        """Return what runs at ``position`` for ``microbatch``."""
        is_backward = position >= self.stages
        return Action(2 * self.stages - 1 - position if is_backward else position, microbatch, is_backward)

    def waits(self, position: int, until: int) -> bool:
        """Whether what ``position`` leaves for the position ``until`` is still there when the turn ends."""
        return self.turn.index(until) < self.turn.index(position)

    def stash_depth(self, stage: int) -> int:
        """Return how many microbatches stage ``stage`` takes in between the passes of one, forward and backward.

        A stash is a ring of that many places, beside the copy that the backward pass reads. It is 2(S-1-s) for Grouped,
        S-1-s for Interleaved, 0 for Sequential.
        """
        return 2 * (self.stages - 1 - stage) // self.period

    def run_in_turns(self, microbatches: int) -> tuple[tuple[Action, ...], ...]:
        """Return what runs in each turn, in order."""
        return tuple(
            tuple(
                self.action(position, turn - self.lag(position))
                for position in self.turn
                if 0 <= turn - self.lag(position) < microbatches
            )
            for turn in range(self.turns(microbatches))
        )

    def actions(self, microbatches: int) -> tuple[Action, ...]:
        """Return everything that runs, in order."""
        return tuple(action for turn in self.run_in_turns(microbatches) for action in turn)


def microbatch_multiple(kind: PipelineSchedule, stages: int, *, trains: bool) -> int:
    """Return what the number of microbatches of one run must be a multiple of (Graphcore: Keras models)."""
    if kind is PipelineSchedule.Sequential:
        return 1
    return 2 * stages if kind is PipelineSchedule.Grouped and trains else stages
