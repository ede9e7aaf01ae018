"""The example's ``--sweep``: several plans of one network side by side, each compiled, run, and given all the memory."""

from __future__ import annotations

import argparse
import platform
from dataclasses import asdict
from typing import Any, Callable

from ..planning.within import largest_within
from ..report.output import complain
from ..report.sweep import SweepRow, sweep_table, write_sweep
from ..sizes import format_bytes
from .cuts import Cut, named_cuts
from .data import Text
from .json_file import write_figures
from .session import CAPACITY_BYTES, Session


class Sweep:
    """The runs of several plans, and what came out of those that are done."""

    def __init__(self, arguments: argparse.Namespace, build_model: Callable[[Any, argparse.Namespace], Any]) -> None:
        self.arguments, self.build_model = arguments, build_model
        self.capacity_bytes = arguments.memory_budget or CAPACITY_BYTES
        self.rows: list[SweepRow] = []
        self.seconds: list[float] = []
        self.versions: dict[str, str] = {"python": platform.python_version()}

    def train(self, text: Text | None) -> None:
        """Compile each plan, run it unless told not to, and find the largest batch that it has room for."""
        arguments = self.arguments
        for cut in named_cuts(arguments):
            for warning in cut.warnings(arguments.seq_len):
                complain(f"warning: {warning}")
            session = self.session()
            session.build(cut)
            session.compile()
            if not arguments.compile_only:
                session.fit(text)
            self.seconds += session.seconds
            self.versions.update(session.results["versions"])
            row = SweepRow(
                plan=str(cut),
                checkpoints=cut.checkpoints,
                levels=cut.levels,
                recompute=cut.recompute,
                predicted_peak_bytes=session.results["predicted_peak_bytes"],
                peak_bytes=session.results["peak_bytes"],
                needed_bytes=session.needed_bytes,
                step_seconds=session.results.get("step_seconds"),
                largest_batch=self.largest_batch(cut),
            )
            self.rows.append(row)
            if not arguments.quiet:
                timed = "" if row.step_seconds is None else f", {row.step_seconds:.3g} s per step"
                print(f"{row.plan}: peak {format_bytes(row.peak_bytes)}{timed}, batch up to {row.largest_batch}", flush=True)

    def session(self) -> Session:
        """Return a run of its own, which keeps quiet."""
        session = Session(argparse.Namespace(**{**vars(self.arguments), "quiet": True}), self.build_model)
        session.load()
        return session

    def largest_batch(self, cut: Cut) -> int:
        """Return how many sequences ``cut`` has room for in the capacity, proven by compiling that many and one more."""
        session = self.session()

        def needed_bytes(batch_size: int) -> int:
            session.build(cut, batch_size)
            session.compile()
            return session.needed_bytes

        return largest_within(
            budget_bytes=self.capacity_bytes,
            predicted_bytes=lambda batch_size: session.predicted_bytes(cut, batch_size),
            needed_bytes=needed_bytes,
        )

    def report(self) -> None:
        """Print the table and write the report that was asked for. Raises ReportError where it cannot be written."""
        arguments = self.arguments
        print(sweep_table(self.rows, self.capacity_bytes))
        if arguments.report:
            title = (
                f"{arguments.cell.upper()}, {arguments.seq_len} steps, {arguments.units} units, batch {arguments.batch_size}"
            )
            for path in write_sweep(self.rows, arguments.report, capacity_bytes=self.capacity_bytes, title=title):
                print(f"report: {path}")

    def write_json(self) -> None:
        """Write the figures so far to --json. Raises ReportError where that cannot be."""
        arguments = self.arguments
        found = {name: getattr(arguments, name) for name in ("cell", "data", "seq_len", "units", "features", "batch_size")}
        found.update(capacity_bytes=self.capacity_bytes, versions=self.versions, rows=[asdict(row) for row in self.rows])
        write_figures(found, arguments.json)
