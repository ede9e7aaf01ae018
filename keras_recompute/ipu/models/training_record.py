"""A record of training for each update, in more detail than Keras's running metrics.

An addition to Graphcore's API.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..pipeline.schedule import Action, Schedule


@dataclass
class TrainingRecord:
    """The results of training, one entry per optimiser update.

    ``losses`` are means over the update's microbatches, and ``gradient_norms`` norms of the
    accumulated gradient. ``order`` is the order in which a pipeline's stages ran for the last
    update, logged by the program itself.
    """

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    order: tuple[Action, ...] = ()

    def add(
        self,
        losses: Any,
        gradient_norms: Any,
        log: Any,
        schedule: Schedule | None,
        microbatches: int,
    ) -> None:
        """Add the results of an execution; ``log`` is as ``PipelineLoop`` writes it."""
        self.losses.extend(losses.numpy().tolist())
        self.gradient_norms.extend(gradient_norms.numpy().tolist())
        if schedule is not None:
            self.order = tuple(
                schedule.action(*divmod(int(entry), microbatches)) for entry in log.numpy()
            )
