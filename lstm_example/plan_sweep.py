"""``--sweep``: several plans of one network compared, each compiled, run, and fitted to memory."""

from __future__ import annotations

import platform
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from keras_recompute.report.output import print_error
from keras_recompute.sizes import format_bytes

from .arguments import Options
from .data import Text
from .largest_batch import largest_within_budget
from .memory_check import predicted_bytes
from .program_needs import bytes_needed, capacity_of, peak_and_needed_bytes
from .sequence_plans import SequencePlan, named_plans
from .session import BuildModel, Session
from .sweep_report import SweepRow, sweep_table, write_sweep


class Sweep:
    """Runs of several plans, and the results of the finished ones."""

    def __init__(self, options: Options, build_model: BuildModel) -> None:
        self.options, self.build_model = options, build_model
        self.capacity_bytes = options.memory_budget or capacity_of(options)[0]
        self.rows: list[SweepRow] = []
        self.seconds: list[float] = []
        self.versions: dict[str, str] = {"python": platform.python_version()}

    def train(self, text: Text | None) -> None:
        """Compile each plan, run it unless told not to, and find the largest batch that fits."""
        for plan in named_plans(self.options):
            for warning in plan.warnings(self.options.seq_len):
                print_error(f"warning: {warning}")
            # A session of its own, so that no plan inherits the state of another.
            session = self.session()
            peak, needed = peak_and_needed_bytes(self.options, partial(session.compile, plan))
            if not self.options.compile_only:
                session.fit(text)
            self.seconds += session.seconds
            self.versions.update(session.versions)
            row = SweepRow(
                plan=str(plan),
                checkpoints=plan.checkpoints,
                levels=plan.levels,
                recompute=plan.recompute,
                predicted_peak_bytes=predicted_bytes(self.options, plan),
                peak_bytes=peak,
                needed_bytes=needed,
                step_seconds=session.step_seconds,
                largest_batch=self.largest_batch(plan),
            )
            self.rows.append(row)
            if not self.options.quiet:
                timed = "" if row.step_seconds is None else f", {row.step_seconds:.3g} s per step"
                print(
                    f"{row.plan}: peak {format_bytes(row.peak_bytes)}{timed}, batch up to "
                    f"{row.largest_batch}",
                    flush=True,
                )

    def session(self, batch_size: int | None = None) -> Session:
        """Return a separate run that prints nothing."""
        options = replace(
            self.options, quiet=True, batch_size=batch_size or self.options.batch_size
        )
        session = Session(options, self.build_model)
        session.load()
        return session

    def largest_batch(self, plan: SequencePlan) -> int:
        """Return the largest batch of ``plan`` that fits, proven by compiling it and one more."""
        return largest_within_budget(
            budget_bytes=self.capacity_bytes,
            predicted_bytes=lambda batch_size: predicted_bytes(self.options, plan, batch_size),
            needed_bytes=lambda batch_size: bytes_needed(
                self.options, lambda: self.session(batch_size).compile(plan)
            ),
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
