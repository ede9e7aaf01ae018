"""``--sweep``: several plans of one network compared, each compiled, run, and fitted to memory."""

from __future__ import annotations

import platform
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from keras_recompute.report.output import print_error
from keras_recompute.sizes import format_bytes

from .arguments import Options
from .backend_models import load_builder
from .data import Text
from .largest_batch import largest_within_budget
from .memory_check import predicted_bytes
from .model_builder import BuildModel, ModelBuilder
from .program_needs import bytes_needed, capacity_of, peak_and_needed_bytes
from .progress import Progress
from .run_record import RunRecord
from .sequence_plans import SequencePlan, named_plans
from .sweep_report import SweepRow, sweep_table, write_sweep
from .training import fit
from .worker_processes import WorkerShare


class Sweep:
    """Runs of several plans, and the results of the finished ones."""

    def __init__(self, options: Options, build_model: BuildModel) -> None:
        self.options, self._build_model = options, build_model
        self.capacity_bytes = options.memory_budget or capacity_of(options)[0]
        self.progress = Progress(quiet=True)
        self.rows: list[SweepRow] = []
        self.updates = 0
        self.versions: dict[str, str] = {"python": platform.python_version()}

    def train(self, text: Text | None) -> None:
        """Compile each plan, run it unless told not to, and find the largest batch that fits."""
        for plan in named_plans(self.options):
            for warning in plan.warnings(self.options.seq_len):
                print_error(f"warning: {warning}")
            row = self._row(plan, text)
            self.rows.append(row)
            if not self.options.quiet:
                timed = "" if row.step_seconds is None else f", {row.step_seconds:.3g} s per step"
                print(
                    f"{row.plan}: peak {format_bytes(row.peak_bytes)}{timed}, batch up to "
                    f"{row.largest_batch}",
                    flush=True,
                )

    def _row(self, plan: SequencePlan, text: Text | None) -> SweepRow:
        # A record of its own, so that no plan inherits the state of another.
        record = RunRecord(WorkerShare(self.options))
        builder = self._builder(record)
        peak, needed = peak_and_needed_bytes(self.options, partial(builder.compile, plan))
        if not self.options.compile_only:
            fit(builder, record, text, self.progress)
        self.updates += record.updates
        return SweepRow(
            plan=str(plan),
            checkpoints=plan.checkpoints,
            levels=plan.levels,
            recompute=plan.recompute,
            predicted_peak_bytes=predicted_bytes(self.options, plan),
            peak_bytes=peak,
            needed_bytes=needed,
            step_seconds=record.step_seconds,
            largest_batch=self._largest_batch(plan),
        )

    def _builder(self, record: RunRecord) -> ModelBuilder:
        builder = load_builder(record, self._build_model, self.progress.say)
        self.versions.update(record.versions)
        return builder

    def _largest_batch(self, plan: SequencePlan) -> int:
        """Return the largest batch of ``plan`` that fits, proven by compiling it and one more."""

        def needed_bytes(batch_size: int) -> int:
            options = replace(self.options, batch_size=batch_size)
            builder = self._builder(RunRecord(WorkerShare(options)))
            return bytes_needed(self.options, partial(builder.compile, plan))

        return largest_within_budget(
            budget_bytes=self.capacity_bytes,
            predicted_bytes=partial(predicted_bytes, self.options, plan),
            needed_bytes=needed_bytes,
        )

    def report(self) -> None:
        """Print the table and write the report. Raises ReportError if it cannot be written."""
        options = self.options
        print(sweep_table(self.rows, self.capacity_bytes))
        if options.report:
            title = (
                f"{options.cell.upper()}, {options.seq_len} steps, {options.units} units, "
                f"batch {options.batch_size}"
            )
            for path in write_sweep(
                self.rows, options.report, capacity_bytes=self.capacity_bytes, title=title
            ):
                print(f"report: {path}")

    def fields(self) -> dict[str, Any]:
        """Return the figures so far for a JSON file."""
        names = ("cell", "data", "seq_len", "units", "features", "batch_size")
        found = {name: getattr(self.options, name) for name in names}
        return {
            **found,
            "capacity_bytes": self.capacity_bytes,
            "versions": self.versions,
            "rows": [asdict(row) for row in self.rows],
        }
