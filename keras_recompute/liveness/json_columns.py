"""The JSON form of a program: columns instead of records, with each distinct text written once.

A program of twenty thousand steps repeats its operation names. As columns of indices into one list
of texts it takes a fraction of the size, and any JSON reader can still read it.
"""

from __future__ import annotations

import json
import math
from operator import attrgetter
from typing import Any, Callable, Mapping

from ..errors import ReportError

FORMAT = "keras-recompute liveness"
SCHEMA_VERSION = 1

_STEP = {
    "instruction": str,
    "not_always_live_bytes": int,
    "op_name": None,
    "layer": None,
    "phase": None,
    "section": None,
}
_BUFFER = {
    "name": str,
    "size_bytes": int,
    "first_step": int,
    "last_step": int,
    "lifetime": str,
    "category": str,
    "op_name": None,
    "layer": None,
    "phase": None,
    "section": None,
    "source": None,
}
_MOST = 2**63  # no memory has as many bytes, and no program as many steps
_COUNTS = ("program_instructions", "allocated_temporary_bytes", "capacity_bytes", "measured_bytes")


def encode(program: Any) -> str:
    """Return ``program`` as JSON text with sorted keys and no spaces."""
    texts: dict[str, int] = {}

    def column(records: Any, name: str, kind: type | None) -> list[Any]:
        values = list(map(attrgetter(name), records))
        if kind is int:
            return values
        # A text is written as its index among all texts.
        return [None if v is None else texts.setdefault(v, len(texts)) for v in values]

    def table(records: Any, fields: Mapping[str, type | None]) -> dict[str, list[Any]]:
        return {name: column(records, name, kind) for name, kind in fields.items()}

    names = ("name", "compiled_by", "compile_seconds", "measured_by", *_COUNTS)
    document = {name: getattr(program, name) for name in names}
    document.update(format=FORMAT, schema_version=SCHEMA_VERSION)
    document["compiler_totals"] = dict(program.compiler_totals)
    document["steps"] = table(program.steps, _STEP)
    document["buffers"] = table(program.buffers, _BUFFER)
    document["texts"] = list(texts)  # last: the columns have collected them
    return json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"


def decode(
    text: str | bytes,
    *,
    program: Callable[..., Any],
    step: Callable[..., Any],
    buffer: Callable[..., Any],
) -> Any:
    """Build the records from JSON text.

    Raises ReportError that names what is missing, unknown or newer.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"this is not a liveness report: it is not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ReportError(
            f'this is not a liveness report: its JSON is not an object with "format": "{FORMAT}"'
        )
    version = document.get("schema_version")
    if type(version) is not int or version < 1:
        raise ReportError(
            f"the liveness report has schema_version {version!r} instead of a whole number from 1 "
            "on"
        )
    # A newer version may mean something else by the same names.
    if version > SCHEMA_VERSION:
        raise ReportError(
            f"the liveness report has schema_version {version}, and this release reads up to "
            f"{SCHEMA_VERSION}: upgrade keras-recompute to read it"
        )
    texts = _typed(document, "texts", list)
    totals = _typed(document, "compiler_totals", dict)
    are_texts = all(type(text) is str for text in texts)
    if not are_texts or not all(map(_is_count, totals.values())):
        raise ReportError(
            "the liveness report is damaged: a text is not a string, or a total is not a whole "
            "number"
        )
    seconds = document.get("compile_seconds")
    if seconds is not None and not (
        _is_count(seconds) or (type(seconds) is float and math.isfinite(seconds))
    ):
        raise ReportError(
            f"the liveness report has compile_seconds {seconds!r} instead of a number or null"
        )
    return program(
        name=_typed(document, "name", str),
        compiled_by=_typed(document, "compiled_by", str),
        steps=_records(document, "steps", _STEP, texts, step),
        buffers=_records(document, "buffers", _BUFFER, texts, buffer),
        compile_seconds=seconds,
        measured_by=None
        if document.get("measured_by") is None
        else _typed(document, "measured_by", str),
        compiler_totals=totals,
        **{
            name: None if document.get(name) is None else _typed(document, name, int)
            for name in _COUNTS
        },
    )


def _typed(document: dict[str, Any], name: str, kind: type) -> Any:
    value = document.get(name)
    if type(value) is not kind or (kind is int and not _is_count(value)):
        raise ReportError(
            f"the liveness report has {name} {value!r:.60} instead of {kind.__name__}"
        )
    return value


def _is_count(value: Any) -> bool:
    return type(value) is int and -_MOST < value < _MOST


def _wrong_indices(indices: list[Any], count: int, *, is_optional: bool) -> list[Any]:
    """Return those of ``indices`` that are none of ``count`` texts, nor None where that may be."""
    wrong = []
    for index in indices:
        is_index = type(index) is int and 0 <= index < count
        if not is_index and not (is_optional and index is None):
            wrong.append(index)
    return wrong


def _records(
    document: dict[str, Any],
    table: str,
    fields: dict[str, Any],
    texts: list[str],
    make: Callable[..., Any],
) -> Any:
    columns = _typed(document, table, dict)
    values = []
    for name, kind in fields.items():
        raw = _typed(columns, name, list)
        if kind is int:
            wrong = [v for v in raw if not _is_count(v)]
        else:
            wrong = _wrong_indices(raw, len(texts), is_optional=kind is None)
            raw = raw if wrong else [None if v is None else texts[v] for v in raw]
        if wrong:
            raise ReportError(
                f"the liveness report has {wrong[0]!r:.60} in column {name} of {table}"
            )
        values.append(raw)
    if len(set(map(len, values))) != 1:
        raise ReportError(
            f"the liveness report is damaged: the columns of {table} differ in length"
        )
    return tuple(make(**dict(zip(fields, row))) for row in zip(*values))
