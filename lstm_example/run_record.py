"""What is known of a run so far: its options, plan, program and figures.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import contextlib
import copy
import platform
import statistics
from dataclasses import dataclass, field
from typing import Any, Iterator

from keras_recompute.keras_backend import TENSORFLOW, current_backend
from keras_recompute.liveness import Program
from keras_recompute.liveness.local_device import measure_host_and_device
from keras_recompute.liveness.process import process_memory

from .options import Options
from .plan_choice import Choice
from .saves import Save
from .sequence_plans import SequencePlan
from .worker_processes import WorkerShare

SAVED = "losses", "gradient_norms", "validation", "trained_seconds"  # and the versions


@dataclass(frozen=True)
class MeasuredMemory:
    """Memory that a run took beyond what was held before; None if unknown."""

    measured_peak_bytes: int | None = None
    device_peak_bytes: int | None = None


@dataclass
class RunRecord:
    """The figures of one worker's run. The thread that trains writes them, the main one reports.

    ``losses``, ``gradient_norms`` and ``trained_seconds`` include those of earlier runs that this
    one goes on from, ``seconds`` are per step of each update of this run.
    """

    share: WorkerShare
    resumed: Save | None = None  # what the run goes on from
    saved: Save | None = None  # its last save
    versions: dict[str, str] = field(default_factory=lambda: {"python": platform.python_version()})
    choice: Choice | None = None
    plan: SequencePlan | None = None
    parameters: int | None = None
    program: Program | None = None
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] | None = field(default_factory=list)  # None if unknown
    validation: list[dict[str, float]] = field(default_factory=list)  # of the held-back text
    trained_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    measured: MeasuredMemory | None = None
    completed: bool = False
    options: Options = field(init=False)  # of this worker

    def __post_init__(self) -> None:
        self.options = self.share.options()
        if self.resumed:
            self.saved = self.resumed
            for name in SAVED:
                # Copied, since the state stays as it was saved.
                setattr(self, name, copy.copy(self.resumed.state[name]))

    @property
    def updates(self) -> int:
        """The number of updates that are done, those of earlier runs among them."""
        return len(self.losses)

    @property
    def step_seconds(self) -> float | None:
        """The median of the seconds per step, without the first execution, which compiles.

        If there is only one execution, it counts.
        """
        return statistics.median(self.seconds[1:] or self.seconds) if self.seconds else None

    def add_update(self, *, loss: float, norm: float | None, elapsed_seconds: float) -> None:
        """Add the figures of an update; ``norm`` is None if unknown."""
        self.trained_seconds += elapsed_seconds
        self.seconds.append(elapsed_seconds / self.options.gradient_accumulation)
        self.losses.append(loss)
        if norm is None:
            self.gradient_norms = None
        elif self.gradient_norms is not None:
            self.gradient_norms.append(norm)

    def add_validation(self, loss: float) -> None:
        """Add the loss of the held-back text after the last update."""
        figures = {"update": self.updates, "loss": loss, "trained_seconds": self.trained_seconds}
        self.validation.append(figures)

    @contextlib.contextmanager
    def measure_execution(self) -> Iterator[None]:
        """Record the memory of the execution in the block, unless it compiles and others follow.

        One execution is measured, and nothing is done around the others.
        """
        # The first execution compiles, which takes memory too.
        compiles = not self.seconds and self.options.updates > 1
        if self.measured or compiles:
            yield
        elif current_backend() == TENSORFLOW:
            reserved = (self.program and self.program.allocated_temporary_bytes) or 0
            with measure_host_and_device(reserved_bytes=reserved) as (on_device, memory):
                yield
            self.measured = MeasuredMemory(memory.over_idle_bytes, on_device.over_idle_bytes)
        else:
            with process_memory() as memory:
                yield
            self.measured = MeasuredMemory(memory.over_idle_bytes)

    def is_due(self, every: int) -> bool:
        """Whether what is due every ``every`` updates, and after the last one, is due now."""
        return self.updates % every == 0 or self.updates == self.options.updates

    def saved_figures(self) -> dict[str, Any]:
        """Return the figures that a save holds."""
        return {name: getattr(self, name) for name in (*SAVED, "versions")}
