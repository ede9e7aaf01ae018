"""Exports of a program's memory for other tools: CSV, Chrome trace (Perfetto), and XProf.

A program has steps, not times. Where a format needs a time, step ``n`` begins at ``n`` microseconds
and lasts one.
"""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import fields
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import Any, Iterable, Iterator, Sequence

from ..atomic_files import atomic_write, ensure_folder
from ..errors import ReportError
from ..liveness import Buffer, Program, Step
from .rows import Span, phase_spans, section_spans
from .xplane import xspace

STEPS_NAME, BUFFERS_NAME, TRACE_NAME = "steps.csv", "buffers.csv", "trace.json"
_PROCESS, _PHASES, _SECTIONS, _LAYERS, _INSTRUCTIONS = 1, 1, 2, 3, 4
_HOST = "compiled"  # XProf names a trace after its host; this program was not run on any
# A cell that begins with one of these is a formula to a spreadsheet (OWASP, "CSV Injection"). The
# guard itself is among them, so that removing one guard always restores the text.
_GUARDED, _GUARD = ("=", "+", "-", "@", "\t", "\r", "\n", "\0", "'"), "'"
_NOT_IN_A_FILE_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


def export_csv(program: Program, directory: str | os.PathLike[str]) -> list[Path]:
    """Write ``steps.csv`` and ``buffers.csv`` into ``directory``: all steps and buffers, in bytes.

    Text is quoted. Names come from foreign files, and a spreadsheet runs what begins like a
    formula. So such a text, or one that begins with ``'``, is written with ``'`` in front. Readers
    of names remove one ``'``.

    Raises:
        ReportError: They cannot be written.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> [path.name for path in kr.report.export_csv(program, "tables")]
        ['steps.csv', 'buffers.csv']
    """
    folder = ensure_folder(directory)
    steps, buffers = folder / STEPS_NAME, folder / BUFFERS_NAME
    names = _names_of_fields(Step)
    # The sum of always-live and other bytes, as the curves show it.
    held = zip(program.steps, program.timeline.total_bytes)
    rows = []
    for number, (step, total_bytes) in enumerate(held):
        rows.append([number, *_values(step, names), total_bytes])
    _table(steps, ["step", *names, "total_bytes"], rows)
    names = _names_of_fields(Buffer)
    _table(buffers, names, [_values(buffer, names) for buffer in program.buffers])
    return [steps, buffers]


def _names_of_fields(kind: type[Step] | type[Buffer]) -> list[str]:
    return [field.name for field in fields(kind)]


def _values(record: Step | Buffer, names: Sequence[str]) -> list[Any]:
    return [getattr(record, name) for name in names]


def export_trace(program: Program, path: str | os.PathLike[str]) -> Path:
    """Write a Chrome trace to ``path``, for ui.perfetto.dev and chrome://tracing; return the path.

    It has counters of the bytes held by category, always-live ones included, and slices of phases,
    sections, layers and instructions.

    Raises:
        ReportError: It cannot be written.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> kr.report.export_trace(program, "trace.json").name
        'trace.json'
    """
    document = {
        "traceEvents": list(trace_events(program)),
        "displayTimeUnit": "ns",
        "otherData": {"program": program.name, "time": "1 microsecond is 1 program step"},
    }
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
    return Path(path)


def trace_events(program: Program) -> Iterator[dict[str, Any]]:
    """Yield the events of a Chrome trace: counters where they change, and complete slices."""
    yield _name("process_name", 0, f"Memory of {program.name}, one microsecond per program step")
    for thread, name in (
        (_PHASES, "phase"),
        (_SECTIONS, "section"),
        (_LAYERS, "layer"),
        (_INSTRUCTIONS, "instruction"),
    ):
        yield _name("thread_name", thread, name)
    sums = category_sums(program)
    before: dict[str, int] = {}
    for number in range(program.program_steps):
        now = {category: column[number] for category, column in sums.items()}
        # Viewers hold a counter's value until it changes.
        if now != before:
            yield {"ph": "C", "name": "bytes held", "pid": _PROCESS, "ts": number, "args": now}
        before = now
    last = {"ph": "C", "name": "bytes held", "pid": _PROCESS, "ts": program.program_steps}
    yield {**last, "args": before}  # gives the last step a width
    for thread, spans in (
        (_PHASES, phase_spans(program)),
        (_SECTIONS, section_spans(program)),
        (_LAYERS, _layer_runs([s.layer for s in program.steps])),
    ):
        for span in spans:
            yield _slice(thread, span.name, span.first, span.steps, {})
    for number, (step, total) in enumerate(zip(program.steps, program.timeline.total_bytes)):
        yield _slice(
            _INSTRUCTIONS,
            step.instruction,
            number,
            1,
            {"op_name": step.op_name, "bytes_held": total},
        )


def category_sums(program: Program) -> dict[str, list[int]]:
    """Return the bytes held at each step by category, without the input feed.

    They add up to the timeline. If a step holds more than its buffers explain, the rest is the
    category ``unexplained``.
    """
    changes: dict[str, list[int]] = {}
    for buffer in program.buffers:
        if buffer.lifetime != "input-feed":
            change = changes.setdefault(buffer.category, [0] * (program.program_steps + 1))
            change[buffer.first_step] += buffer.size_bytes
            change[buffer.last_step + 1] -= buffer.size_bytes
    sums = {category: list(accumulate(changes[category]))[:-1] for category in sorted(changes)}
    # The compiler may count bytes that it lists no buffer for.
    known = list(map(sum, zip(*sums.values()))) if sums else [0] * program.program_steps
    rest = list(map(sub, program.timeline.total_bytes, known))
    return {**sums, "unexplained": rest} if any(rest) else sums


def export_xprof(
    name: str, serialized: bytes, logdir: str | os.PathLike[str], *, run: str = "liveness"
) -> list[Path]:
    """Write a serialized program as a log folder for ``xprof LOGDIR`` or TensorBoard.

    The memory viewer of ``run`` then shows the program under ``name``. Nothing was timed, so the
    other tools are empty.

    Raises:
        ReportError: The files cannot be written.

    Examples:
        >>> compiled = kr.liveness.compile_program(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> [path.name for path in kr.report.export_xprof("square", compiled.serialized, "logs")]
        ['compiled.xplane.pb', 'square.hlo_proto.pb']
    """
    folder = ensure_folder(Path(logdir, "plugins", "profile", _file_name(run)))
    name = _file_name(name)
    trace, program = folder / f"{_HOST}.xplane.pb", folder / f"{name}.hlo_proto.pb"
    with atomic_write(trace) as temporary:
        temporary.write_bytes(xspace(name, serialized, host=_HOST))
    with atomic_write(program) as temporary:
        temporary.write_bytes(serialized)
    return [trace, program]


def _file_name(text: str) -> str:
    name = _NOT_IN_A_FILE_NAME.sub("_", text).strip(".")
    if not name:
        raise ReportError(
            f"{text!r} leaves no characters for a file name: use letters, digits, '_', '-' or '.'"
        )
    # Well below the limit of file names, with room for suffixes.
    return name[:100]


def _table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    # A name from a damaged report may have characters that UTF-8 cannot encode; they are escaped.
    with atomic_write(path) as temporary, temporary.open(
        "w", encoding="utf-8", errors="backslashreplace", newline=""
    ) as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(header)
        for row in rows:
            writer.writerow(map(_guarded, row))


def _guarded(cell: Any) -> Any:
    return _GUARD + cell if isinstance(cell, str) and cell.startswith(_GUARDED) else cell


def _layer_runs(names: Sequence[str | None]) -> list[Span]:
    found: list[Span] = []
    for number, name in enumerate(names):
        if name and found and found[-1].name == name and found[-1].last == number - 1:
            found[-1] = Span(name, found[-1].first, number)
        elif name:
            found.append(Span(name, number, number))
    return found


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _slice(
    thread: int, name: str, first: int, steps: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": _PROCESS,
        "tid": thread,
        "ts": first,
        "dur": steps,
        "args": arguments,
    }
