"""What a run reports at its end: its last lines, its figures as JSON, and the report asked for.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keras_recompute.atomic_files import atomic_write
from keras_recompute.errors import ReportError
from keras_recompute.liveness import Program
from keras_recompute.sizes import format_bytes

from .memory_check import capacity_of, needed_bytes, predicted_bytes
from .options import Options
from .run_record import MeasuredMemory, RunRecord
from .sequence_plans import SequencePlan

_OF_PROGRAM = (
    "always_live_bytes",
    "not_always_live_peak_bytes",
    "peak_bytes",
    "input_feed_bytes",
    "allocated_temporary_bytes",
    "program_steps",
    "program_instructions",
    "compile_seconds",
)


def bits_per_byte(loss: float) -> float:
    """Convert a loss from nats to bits: bits per byte if the network compressed the text."""
    return loss / math.log(2)


def print_run(record: RunRecord) -> None:
    """Print the figures of a run and write its report. Raises ReportError."""
    options, plan, program = record.options, record.plan, record.program
    if program and plan and not options.quiet:
        _print_memory(record, program, plan)
    if record.losses:
        print(f"loss: {record.losses[-1]:.4f} (at first {record.losses[0]:.4f})")
        if record.validation:
            last = bits_per_byte(record.validation[-1]["loss"])
            print(f"validation: {last:.3f} bits per byte")
        print(f"seconds per step: {record.step_seconds:.3f}")
    if record.choice:
        print("\n".join(record.choice.lines()))
    if program and plan:
        _print_peak(options, program)
        if options.report:
            _write_report(options.report, options, program, plan)


def _print_memory(record: RunRecord, program: Program, plan: SequencePlan) -> None:
    from keras_recompute.report import memory_rows, print_liveness, print_memory

    print_liveness(program)
    measured = record.measured or MeasuredMemory()
    rows = memory_rows(
        predicted=predicted_bytes(record.options, plan),
        compiled=program.peak_bytes,
        measured=measured.measured_peak_bytes,
        on_device=measured.device_peak_bytes,
    )
    print_memory(rows)
    print()


def _print_peak(options: Options, program: Program) -> None:
    capacity, whose = capacity_of(options)
    peak = format_bytes(program.peak_bytes)
    said = [f"peak: {peak} of the {format_bytes(capacity)} of {whose}"]
    if options.device:
        needed = format_bytes(needed_bytes(program, options))
        said.append(f"with its data a run needs {needed}")
    said.append(f"always-live: {format_bytes(program.always_live_bytes)}")
    print(", ".join(said))


def _write_report(folder: Path, options: Options, program: Program, plan: SequencePlan) -> None:
    from keras_recompute.report import write_report

    recomputes = str(plan) if plan.recompute else "without recomputation"
    where = f", on {capacity_of(options)[1]}" if options.device else ""
    title = f"{options.cell.upper()}, {options.seq_len} steps, {recomputes}{where}"
    write_report(program, folder, title=title)
    print(f"report: {folder / 'liveness.png'}")


def figures_of(record: RunRecord) -> dict[str, Any]:
    """Return the figures of a run, as far as it came."""
    options, plan, program = record.options, record.plan, record.program
    found = {
        "target": options.target,
        "cell": options.cell,
        "seq_len": options.seq_len,
        **record.saved_figures(),
        "completed": record.completed,
        "resumed_after": record.resumed.updates if record.resumed else 0,
        "saved": record.saved and str(record.saved.path),
        "capacity_bytes": capacity_of(options)[0],
        "device": options.device,
        "workers": record.share.workers,
    }
    if plan:
        found.update(asdict(plan), parameters=record.parameters)
        found["sections"] = list(plan.counts(options.seq_len).elements())
        found["predicted_peak_bytes"] = predicted_bytes(options, plan)
    if program:
        found.update({name: getattr(program, name) for name in _OF_PROGRAM})
    if record.choice:
        found.update(record.choice.fields())
    if record.seconds:
        found["step_seconds"] = record.step_seconds
    if record.measured:
        found.update(asdict(record.measured))
    return found


def write_figures(figures: dict[str, Any], path: Path) -> None:
    """Write ``figures`` to ``path``, whole or not at all.

    Raises ReportError if the file cannot be written. The figures are then printed, so that they are
    not lost.
    """
    text = json.dumps(figures, indent=1) + "\n"
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except ReportError as error:
        print(text, end="", flush=True)
        raise ReportError(f"{error}; the figures are printed instead") from error
