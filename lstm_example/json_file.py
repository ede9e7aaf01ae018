"""The figures of a run as a JSON file, or on standard output if that cannot be written."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keras_recompute.atomic_files import atomic_write
from keras_recompute.errors import ReportError

from .memory_check import predicted_bytes
from .program_needs import capacity_of
from .run_record import RunRecord

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
