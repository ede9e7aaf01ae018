"""One run of the example: it builds, compiles and trains one plan, and reports.

Each of these is another module's job; what comes of them is in a ``RunRecord``. Runs on Python 3.8
beside the Poplar SDK.
"""

from __future__ import annotations

from typing import Any

from keras_recompute.keras_backend import TITLES, TORCH, current_backend
from keras_recompute.report.output import print_error

from .data import Text
from .memory_check import compiled_needs
from .model_builder import BuildModel, ModelBuilder
from .plan_choice import choice_for
from .progress import Progress
from .resumption import check_versions
from .run_record import RunRecord
from .run_report import figures_of, print_run
from .saves import Save
from .sequence_plans import SequencePlan, named_plans
from .training import fit, load_builder
from .worker_processes import WorkerShare


class TrainingRun:
    """A run of one plan, in one process."""

    def __init__(
        self, share: WorkerShare, build_model: BuildModel, *, resumed: Save | None = None
    ) -> None:
        self.record, self._build_model = RunRecord(share, resumed), build_model
        self.options = self.record.options
        self.progress = Progress(quiet=self.options.quiet)

    def train(self, text: Text | None) -> None:
        """Choose the plan if asked to, compile, and fit."""
        options, record = self.options, self.record
        self.progress.say(f"loading {TITLES[current_backend()]}")
        builder = load_builder(record, self._build_model, self.progress)
        if record.resumed:
            check_versions(record.resumed, record.versions)
        plan = self._build_plan(builder)
        for warning in plan.warnings(options.seq_len):
            print_error(f"warning: {warning}")
        if not options.compile_only:
            fit(builder, text)
            builder.read_report()
        record.completed = True

    def _build_plan(self, builder: ModelBuilder) -> SequencePlan:
        """Build the model of the plan, which is chosen if asked to; compile it for XLA."""
        options = self.options
        if options.checkpoints is None:
            choice = choice_for(options)
            try:
                # The plan that is chosen is the one that is built last.
                return choice.choose(
                    lambda plan: compiled_needs(options, lambda: builder.compile(plan))[1]
                )
            finally:
                self.record.choice = choice
        (plan,) = named_plans(options)
        # A record on PyTorch takes minutes, so that it is made if it is asked for.
        is_slow = current_backend() == TORCH and not (options.report or options.compile_only)
        (builder.build if options.is_for_ipu or is_slow else builder.compile)(plan)
        return plan

    @property
    def updates(self) -> int:
        """The number of updates that are done."""
        return self.record.updates

    def report(self) -> None:
        """Print the figures and write the report that was asked for.

        Raises ReportError where it cannot be written.
        """
        # Of several workers, the first one reports.
        if self.record.share.number == 0:
            print_run(self.record)

    def fields(self) -> dict[str, Any]:
        """Return the figures so far for a JSON file."""
        return figures_of(self.record)
