"""The last lines of a run: its loss, its plan, its peak, and the report that was asked for.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from keras_recompute.liveness import Program
from keras_recompute.sizes import format_bytes

from .memory_check import predicted_bytes
from .program_needs import capacity_of, needed_bytes
from .sequence_plans import SequencePlan


@dataclass(frozen=True)
class MeasuredMemory:
    """Memory that a run took beyond what was held before; None if unknown."""

    measured_peak_bytes: int | None = None
    device_peak_bytes: int | None = None


def bits_per_byte(loss: float) -> float:
    """Convert a loss from nats to bits: bits per byte if the network compressed the text."""
    return loss / math.log(2)


def print_run(session: Any) -> None:
    """Print the figures of a ``Session`` and write its report. Raises ReportError."""
    options, plan, program = session.options, session.plan, session.program
    if program and plan and not options.quiet:
        _print_memory(session, program, plan)
    if session.losses:
        print(f"loss: {session.losses[-1]:.4f} (at first {session.losses[0]:.4f})")
        if session.validation:
            last = bits_per_byte(session.validation[-1]["loss"])
            print(f"validation: {last:.3f} bits per byte")
        print(f"seconds per step: {session.step_seconds:.3f}")
    if session.choice:
        print("\n".join(session.choice.lines()))
    if program and plan:
        _print_peak(options, program)
        if options.report:
            _write_report(options, program, plan)


def _print_memory(session: Any, program: Program, plan: SequencePlan) -> None:
    from keras_recompute.report import memory_rows, print_liveness, print_memory

    print_liveness(program)
    measured = session.measured or MeasuredMemory()
    rows = memory_rows(
        predicted=predicted_bytes(session.options, plan),
        compiled=program.peak_bytes,
        measured=measured.measured_peak_bytes,
        on_device=measured.device_peak_bytes,
    )
    print_memory(rows)
    print()


def _print_peak(options: Any, program: Program) -> None:
    capacity, whose = capacity_of(options)
    peak = format_bytes(program.peak_bytes)
    said = [f"peak: {peak} of the {format_bytes(capacity)} of {whose}"]
    if options.device:
        needed = format_bytes(needed_bytes(program, options))
        said.append(f"with its data a run needs {needed}")
    said.append(f"always-live: {format_bytes(program.always_live_bytes)}")
    print(", ".join(said))


def _write_report(options: Any, program: Program, plan: SequencePlan) -> None:
    from keras_recompute.report import write_report

    recomputes = str(plan) if plan.recompute else "without recomputation"
    where = f", on {capacity_of(options)[1]}" if options.device else ""
    title = f"{options.cell.upper()}, {options.seq_len} steps, {recomputes}{where}"
    write_report(program, options.report, title=title)
    print(f"report: {options.report / 'liveness.png'}")
