"""Files that appear whole or not at all, so that no reader ever finds half of one."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Union

from .errors import ReportError

PathLike = Union[str, "os.PathLike[str]"]


def made_folder(directory: PathLike) -> Path:
    """Return ``directory``, made if need be. Raises ReportError where it cannot be."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"the folder {str(folder)!r} for the report cannot be made: {error.strerror}") from error
    return folder


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
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
