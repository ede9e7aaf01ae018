"""Graphcore's own tests of its layers, run here case by case: ``python3
benchmarks/ipu_conformance.py --addons PATH``.

PATH is a checkout of graphcore/ipu_tensorflow_addons; none of its code is in this repository. Each
file of ``FILES`` is copied and run there by ``python3 -m keras_recompute.ipu``, unmodified. What it
prints says what became of each case. Out of scope is a case that runs a session of TensorFlow 1, as
its decorator says, or is refused because it needs TensorFlow 1 or 8-bit numbers.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "ipu_addon_tests.json"
_FOLDER = "ipu_tensorflow_addons/keras/layers"
FILES = tuple(
    f"{_FOLDER}/{name}_test.py"
    for name in (
        "rnn",
        "rnn_hw",
        "normalization",
        "embedding_lookup",
        "dropout",
        "dense",
        "recomputation",
    )
)
PASS, WORDS, REFUSED, FAILED, OUT = "pass", "in other words", "refused", "fails", "out of scope"
_IN_SESSIONS = "deprecated_graph_mode_only"
_OUT_OF_SCOPE = ("TensorFlow 1", "8-bit")
# Errors by which the library says that it does not do something.
_REFUSALS = ("UnsupportedError", "AbsentModuleError", "AbsentNameError", "NotImplementedError")
NAMES_ERROR = re.compile(r"^[\w.]+(Error|Exception|Exit|Interrupt)\b")
_STATUS = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\w+\.\w+)", re.MULTILINE)
_ERROR = re.compile(r"^(?:ERROR|FAIL): (\w+).*\(__main__\.(\w+)", re.MULTILINE)
_MARKS = re.compile(
    r"(<!-- addons: python3 benchmarks/ipu_conformance\.py --addons -->\n)"
    r".*?(<!-- end of addons -->)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Case:
    """What became of a case of a test file."""

    path: str
    case: str
    outcome: str
    reason: str = ""


def run(path: str, checkout: Path, timeout_s: int) -> list[Case]:
    """Run the test file ``path`` of ``checkout``; return its cases, or one without a name where it
    does not get to them.
    """
    source = checkout / path
    if not source.exists():
        return [Case(path, "", FAILED, "it is not in this checkout")]
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copy(source, scratch)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-m", "keras_recompute.ipu", Path(copy).name]
        said = Path(scratch) / "said"
        with said.open("w") as file:
            try:
                subprocess.run(
                    command,
                    cwd=scratch,
                    env=environment,
                    stdout=file,
                    stderr=file,
                    timeout=timeout_s,
                    check=False,
                )
                late = ""
            except subprocess.TimeoutExpired:
                late = f"not finished after {timeout_s} s"
        printed = said.read_text(errors="replace")
    found = cases(path, source.read_text(encoding="utf-8"), printed)
    return (
        found
        if found and not late
        else [*found, Case(path, "", FAILED, late or last_error(printed))]
    )


def cases(path: str, source: str, printed: str) -> list[Case]:
    """Return the cases of the test file ``path`` by what it printed; its ``source`` says which run
    sessions.
    """
    errors: dict[str, str] = {}
    for block in printed.split("=" * 70)[1:]:
        heading = _ERROR.search(block)
        if heading:
            errors.setdefault(f"{heading[2]}.{heading[1]}", last_error(block))
    sessions = in_sessions(source)
    found = []
    for status, case in _STATUS.findall(printed):
        if case.endswith(".test_session"):  # every class of TensorFlow's has it, and it is no test
            continue
        outcome, reason = (
            (PASS, "")
            if status == "OK"
            else _of_error(errors.get(case, "it skips itself"), case in sessions)
        )
        found.append(Case(path, case, outcome, reason))
    return found


def in_sessions(source: str) -> set[str]:
    """Return the cases of a test file that run in sessions of TensorFlow 1, as their decorators
    say.
    """
    return {
        f"{outer.name}.{inner.name}"
        for outer in ast.parse(source).body
        if isinstance(outer, ast.ClassDef)
        for inner in outer.body
        if isinstance(inner, ast.FunctionDef)
        and any(_IN_SESSIONS in ast.unparse(d) for d in inner.decorator_list)
    }


def _of_error(error: str, is_in_session: bool) -> tuple[str, str]:
    name, _, said = error.partition(": ")
    if is_in_session:
        return OUT, "it runs a session of TensorFlow 1"
    if is_refusal(name):
        return (OUT if any(word in said for word in _OUT_OF_SCOPE) else REFUSED), short(said)
    if name == "AssertionError" and " does not match " in said:
        return WORDS, short(said)
    return FAILED, short(error)


def is_refusal(name: str) -> bool:
    """Whether an error of this name, with its module or without, is one by which the library
    refuses.
    """
    return name.rpartition(".")[2] in _REFUSALS


def last_error(text: str) -> str:
    """Return the last line of ``text`` that names an error, with the next where it says no more, or
    what the text ends with.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    at = [n for n, line in enumerate(lines) if NAMES_ERROR.match(line)]
    if not at:
        return lines[-1] if lines else "it printed nothing"
    line = lines[at[-1]]
    return (
        f"{line.strip()} {lines[at[-1] + 1].strip()}"
        if line.rstrip().endswith(":") and at[-1] + 1 < len(lines)
        else line
    )


def table(rows: Sequence[Case]) -> str:
    """Return the counts by file, and each case that does not pass, as tables for the docs."""
    kinds = [
        kind
        for kind in (PASS, WORDS, REFUSED, FAILED, OUT)
        if any(row.outcome == kind for row in rows)
    ]
    inside = [row for row in rows if row.outcome not in (OUT, WORDS)]
    passed = sum(row.outcome == PASS for row in inside)
    lines = [
        (
            f"{passed} of {len(inside)} cases pass that neither compare an error's words nor are "
            "out of scope."
        ),
        "",
        f"| test file | {' | '.join(kinds)} |",
        f"|---|{'---|' * len(kinds)}",
    ]
    for path in dict.fromkeys(row.path for row in rows):
        counts = [sum(row.outcome == kind for row in rows if row.path == path) for kind in kinds]
        lines.append(f"| `{Path(path).name}` | {' | '.join(map(str, counts))} |")
    lines += ["", "| case | outcome |", "|---|---|"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.outcome != PASS:
            reasons.setdefault((row.outcome, row.reason), []).append(
                f"`{row.case or Path(row.path).name}`"
            )
    for (outcome, reason), names in reasons.items():
        lines.append(f"| {', '.join(names)} | {outcome}: {reason.replace('|', '/')} |")
    return "\n".join(lines)


def filled(page: str, rows: Sequence[Case]) -> str:
    """Return ``page`` with the tables between their marks."""
    return _MARKS.sub(lambda mark: f"{mark[1]}{table(rows)}\n{mark[2]}", page)


def known_cases() -> list[Case]:
    """Return the cases of the last run; none where there was none."""
    return (
        [Case(**row) for row in json.loads(RESULTS.read_text(encoding="utf-8"))]
        if RESULTS.exists()
        else []
    )


def write(rows: Sequence[Case], page: Path) -> None:
    """Write the cases, and the tables into ``page``."""
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    page.write_text(filled(page.read_text(encoding="utf-8"), rows), encoding="utf-8")


def short(text: str, most: int = 160) -> str:
    """Return ``text``, cut where it is long."""
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."
