"""A program's memory in the formats of other tools: CSV, Chrome trace (Perfetto), and XProf's
profile folder.

A program has steps, not times. Where a format wants a time, step ``n`` stands at ``n`` microseconds
and lasts one.
"""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Iterable, Iterator, Sequence

from ..atomic_files import atomic_write, ensure_folder
from ..errors import ReportError
from ..liveness import Buffer, Program, Step
from .rows import Span, phase_spans, section_spans
from .xplane import xspace

STEPS_NAME, BUFFERS_NAME, TRACE_NAME = "steps.csv", "buffers.csv", "trace.json"
_PROCESS, _PHASES, _SECTIONS, _LAYERS, _INSTRUCTIONS = 1, 1, 2, 3, 4
_HOST = "compiled"  # XProf calls a trace after the host it was taken on; this one was not run
# A cell that begins with one of these is a formula to a spreadsheet (OWASP, "CSV Injection"); the
# last one keeps the guard apart from names that begin as it does.
_GUARDED, _GUARD = ("=", "+", "-", "@", "\t", "\r", "\n", "\0", "'"), "'"
_NOT_IN_A_FILE_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


def export_csv(program: Program, directory: str | os.PathLike[str]) -> list[Path]:
    """Write ``steps.csv`` and ``buffers.csv`` into ``directory``: every step and every buffer,
    sizes in bytes.

    Text stands in quotation marks. Names come from foreign files, and a spreadsheet computes what
    begins as a formula does: such a text has ``'`` before it, and so has one that begins with
    ``'``. Whoever reads the names takes one ``'`` away.

    Raises:
        ReportError: They cannot be written.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> [path.name for path in kr.report.export_csv(program, "tables")]
        ['steps.csv', 'buffers.csv']
    """
    folder = ensure_folder(directory)
    steps, buffers = folder / STEPS_NAME, folder / BUFFERS_NAME
    names = [f.name for f in fields(Step)]
    held = zip(program.steps, program.timeline.total_bytes)
    _table(
        steps,
        ["step", *names, "total_bytes"],
        ([n, *(getattr(s, f) for f in names), t] for n, (s, t) in enumerate(held)),
    )
    names = [f.name for f in fields(Buffer)]
    _table(buffers, names, ([getattr(b, f) for f in names] for b in program.buffers))
    return [steps, buffers]


def export_trace(program: Program, path: str | os.PathLike[str]) -> Path:
    """Write a Chrome trace, which ui.perfetto.dev and chrome://tracing show, to ``path``; return
    it.

    Counters: bytes held, by category, the always-live ones included. Slices: phases, sections,
    layers, instructions.

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
    """Yield the events of a Chrome trace; counters where they change, slices as complete events."""
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
        if now != before:
            yield {"ph": "C", "name": "bytes held", "pid": _PROCESS, "ts": number, "args": now}
        before = now
    last = {"ph": "C", "name": "bytes held", "pid": _PROCESS, "ts": program.program_steps}
    yield {**last, "args": before}  # so that the last step is as wide as the others
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
    """Return the bytes held at each step by category, the input feed left out, and what no buffer
    explains.

    They add up to the timeline. What a step holds beyond its buffers is ``unexplained``, there only
    if there is any.
    """
    changes: dict[str, list[int]] = {}
    for buffer in program.buffers:
        if buffer.lifetime != "input-feed":
            change = changes.setdefault(buffer.category, [0] * (program.program_steps + 1))
            change[buffer.first_step] += buffer.size_bytes
            change[buffer.last_step + 1] -= buffer.size_bytes
    sums = {category: list(accumulate(changes[category]))[:-1] for category in sorted(changes)}
    known = [sum(column) for column in zip(*sums.values())] if sums else [0] * program.program_steps
    rest = [total - held for total, held in zip(program.timeline.total_bytes, known)]
    return {**sums, "unexplained": rest} if any(rest) else sums


def export_xprof(
    name: str, serialized: bytes, logdir: str | os.PathLike[str], *, run: str = "liveness"
) -> list[Path]:
    """Lay a serialized program out as ``xprof LOGDIR`` and TensorBoard's profile plugin look for
    it; return the files.

    The memory viewer of ``run`` then shows the program under ``name``. Nothing was timed, so its
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
            f"{text!r} leaves no name for a file: letters, digits, '_', '-' and '.' are kept"
        )
    return name[:100]


def _table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    # A name out of a damaged report may have signs that are in no encoding: they become escapes.
    with atomic_write(path) as temporary, temporary.open(
        "w", encoding="utf-8", errors="backslashreplace", newline=""
    ) as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(header)
        writer.writerows(
            [_guarded(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
        )


def _guarded(text: str) -> str:
    return _GUARD + text if text.startswith(_GUARDED) else text


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
