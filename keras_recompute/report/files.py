"""Write a report into a folder so that no reader ever finds half a file."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from ..errors import ReportError
from ..liveness import Program

JSON_NAME, FIGURE_NAME, SERIALIZED_NAME = "liveness.json", "liveness.png", "liveness.hlo_proto.pb"


def write_report(
    program: Program, directory: str | os.PathLike[str], *, title: str | None = None, serialized: bytes | None = None
) -> list[Path]:
    """Write ``liveness.json`` and ``liveness.png`` into ``directory``, made if need be; return their paths.

    ``serialized``, the program as XLA has it (``liveness.compile_program``), is kept beside them as
    ``liveness.hlo_proto.pb``: XProf's memory viewer reads it, the report does not need it.

    Each file appears whole or not at all, and replaces an older one. Raises ReportError where it cannot be written.
    """
    from .figures import liveness_figure

    folder = made_folder(directory)
    data, figure, kept = folder / JSON_NAME, folder / FIGURE_NAME, folder / SERIALIZED_NAME
    with replacing(data) as temporary:
        temporary.write_text(program.to_json(), encoding="utf-8")
    liveness_figure(program, figure, title=title)
    if serialized is None:
        kept.unlink(missing_ok=True)  # that of an older report is not this program
        return [data, figure]
    with replacing(kept) as temporary:
        temporary.write_bytes(serialized)
    return [data, figure, kept]


def made_folder(directory: str | os.PathLike[str]) -> Path:
    """Return ``directory``, made if need be. Raises ReportError where it cannot be."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"the folder {str(folder)!r} for the report cannot be made: {error.strerror}") from error
    return folder


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path in the same folder, of the same ending; when the block ends well, it becomes ``path``.

    Raises ReportError where the folder cannot be written.
    """
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.stem}.", suffix=target.suffix, dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # a temporary file is private, a report is not
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"the report {str(target)!r} cannot be written: {error.strerror or error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
