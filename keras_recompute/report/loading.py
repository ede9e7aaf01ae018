"""Loading of reports from a path: a file, or a folder that holds one or several reports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..atomic_files import read_whole
from ..errors import ReportError
from ..liveness import Program, read_hlo_proto, read_popvision
from ..liveness.profile_pop import POP_NAME
from ..startup_lines import hide_startup_lines
from .files import JSON_NAME, SERIALIZED_NAME

PROTO_SUFFIX, POP_SUFFIX = ".pb", ".pop"
PROTO_BYTES_AT_MOST = 2**31 - 1  # of a message; protobuf reads no larger one
_IN_FOLDERS = (JSON_NAME, POP_NAME)  # what a folder is looked through for, in this order


@dataclass(frozen=True)
class Report:
    """A program with its label and the file that it was read from."""

    label: str
    path: Path
    program: Program


def read_report(path: str | os.PathLike[str]) -> Report:
    """Read the one report at ``path``.

    ``path`` is a ``liveness.json``, a ``profile.pop``, a serialized program, or a folder that holds
    one. Raises ReportError if there is none, or several.
    """
    files = _files(Path(path))
    if len(files) > 1:
        names = ", ".join(repr(str(f.parent)) for f in files[:3])
        raise ReportError(
            f"{str(path)!r} holds {len(files)} reports instead of one: name one of them, such as "
            f"{names}"
        )
    return _read(files[0])


def read_reports(path: str | os.PathLike[str]) -> list[Report]:
    """Read the report at ``path``, or those in the folders directly inside it, sorted by name."""
    return list(map(_read, _files(Path(path))))


def read_serialized(report: Report) -> bytes:
    """Return the serialized program kept with ``report``. Raises ReportError if there is none."""
    kept = (
        report.path if report.path.suffix == PROTO_SUFFIX else report.path.parent / SERIALIZED_NAME
    )
    try:
        return read_whole(kept, at_most_bytes=PROTO_BYTES_AT_MOST)
    except OSError as error:
        raise ReportError(
            f"the serialized program {str(kept)!r} is needed and cannot be read "
            f"({error.strerror}): keep it with write_report(program, folder, "
            "serialized=compile_program(...).serialized)"
        ) from error


def _files(path: Path) -> list[Path]:
    if not os.path.isdir(path):
        return [path]
    # A report in the folder itself takes precedence over those in folders inside.
    for folders in ("", "*/"):
        by_folder: dict[Path, Path] = {}
        for name in _IN_FOLDERS:
            for file in path.glob(folders + name):
                # A liveness.json says more than the profile.pop beside it.
                by_folder.setdefault(file.parent, file)
        if by_folder:
            return sorted(by_folder.values())
    raise ReportError(
        f"the folder {str(path)!r} holds no {' or '.join(_IN_FOLDERS)}, nor does a folder in it: "
        "name one that holds a report"
    )


def _read(file: Path) -> Report:
    # Standard names say nothing, so their folder names the report.
    label = file.parent.name if file.name in _IN_FOLDERS else file.name.split(".")[0]
    try:
        if file.suffix == POP_SUFFIX:
            return Report(label or file.name, file, read_popvision(file))
        if file.suffix != PROTO_SUFFIX:
            return Report(label or file.name, file, Program.read(file))
        data = read_whole(file, at_most_bytes=PROTO_BYTES_AT_MOST)
        with hide_startup_lines():
            return Report(label or file.name, file, read_hlo_proto(data))
    except ReportError as error:
        raise ReportError(f"{str(file)!r}: {error}") from error
    except OSError as error:
        raise ReportError(f"{str(file)!r} could not be read: {error.strerror or error}") from error
    except ImportError as error:
        raise ReportError(
            f"{str(file)!r} is a serialized program, and TensorFlow, which reads it, is missing"
        ) from error
