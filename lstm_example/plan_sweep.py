"""``--sweep``: several plans of one network compared, each compiled, run, and fitted to memory."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

from keras_recompute.fits.largest import largest_that_fits
from keras_recompute.report.output import print_error
from keras_recompute.sizes import format_bytes

from .data import Text
from .memory_check import capacity_of, compiled_needs, predicted_bytes
from .model_builder import BuildModel
from .options import Options
from .progress import Progress
from .run_record import RunRecord
from .sequence_plans import SequencePlan, named_plans
from .sweep_report import SweepRow, sweep_table, write_sweep
from .training import fit, load_builder
from .worker_processes import WorkerShare

_MOST_COMPILED = 40  # batch sizes of a plan; four do where the need grows in proportion


class Sweep:
    """Runs of several plans, and the results of the finished ones."""

    def __init__(self, options: Options, build_model: BuildModel) -> None:
        self.options, self._build_model = options, build_model
        self.capacity_bytes = options.memory_budget or capacity_of(options)[0]
        self.progress = Progress(quiet=True)
        self.rows: list[SweepRow] = []
        self.updates = 0
        self._record = RunRecord(WorkerShare(options))  # of the last plan

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
        self._record = record = RunRecord(WorkerShare(self.options))
        builder = load_builder(record, self._build_model, self.progress)
        peak, needed = compiled_needs(self.options, partial(builder.compile, plan))
        if not self.options.compile_only:
            fit(builder, text)
        self.updates += record.updates
        return SweepRow(
            str(plan),
            **asdict(plan),
            predicted_peak_bytes=predicted_bytes(self.options, plan),
            peak_bytes=peak,
            needed_bytes=needed,
            step_seconds=record.step_seconds,
            largest_batch=self._largest_batch(plan, needed),
        )

    def _largest_batch(self, plan: SequencePlan, needed: int) -> int:
        """Return the largest batch of ``plan`` that fits, proven by compiling it and one more.

        The plan's own batch needs ``needed`` bytes.
        """

        def needed_bytes(batch_size: int) -> int:
            options = replace(self.options, batch_size=batch_size)
            record = RunRecord(WorkerShare(options))
            builder = load_builder(record, self._build_model, self.progress)
            return compiled_needs(self.options, partial(builder.compile, plan))[1]

        found = largest_that_fits(
            needed_bytes,
            known={self.options.batch_size: needed},
            budget_bytes=self.capacity_bytes,
            tries=_MOST_COMPILED,
        )
        return found.fits or 0

    def report(self) -> None:
        """Print the table and write the report. Raises ReportError if it cannot be written."""
        options = self.options
        print(sweep_table(self.rows, self.capacity_bytes))
        if options.report:
            sizes = f"{options.units} units, batch {options.batch_size}"
            paths = write_sweep(
                self.rows,
                options.report,
                capacity_bytes=self.capacity_bytes,
                title=f"{options.cell.upper()}, {options.seq_len} steps, {sizes}",
            )
            print("\n".join(f"report: {path}" for path in paths))

    def fields(self) -> dict[str, Any]:
        """Return the figures so far for a JSON file."""
        names = ("cell", "data", "seq_len", "units", "features", "batch_size")
        found = {name: getattr(self.options, name) for name in names}
        return {
            **found,
            "capacity_bytes": self.capacity_bytes,
            "versions": self._record.versions,
            "rows": list(map(asdict, self.rows)),
        }
