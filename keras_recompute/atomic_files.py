"""Files that appear whole or not at all, so that no reader ever finds half of one, and reading that always ends."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Union

from .errors import ReportError

PathLike = Union[str, "os.PathLike[str]"]
FILE, FOLDER = "a file", "a folder"
_OTHERS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_NAME_PART = 20  # characters of a name that a temporary file takes over: with 4 bytes each, its name stays below 255 bytes


def file_kind(path: PathLike) -> str | None:
    """Return what stands at ``path``, links followed: FILE, FOLDER, "a pipe", "a socket", "a device"; None for nothing.

    Raises OSError where the system cannot tell, as of a name that is too long or of links that lead round in a circle.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    return FILE if stat.S_ISREG(mode) else FOLDER if stat.S_ISDIR(mode) else _OTHERS.get(stat.S_IFMT(mode), "no file")


def refuse_pipes_and_devices(path: PathLike) -> None:
    """Raise OSError for a pipe, which is opened when somebody writes to it, and for a device, which may never end."""
    what = file_kind(path)
    if what not in (None, FILE, FOLDER):
        raise OSError(errno.EINVAL, f"it is {what}, not a file: store what comes from there in a file first")


def read_whole(path: PathLike, *, at_most_bytes: int) -> bytes:
    """Return the contents of ``path``. Raises OSError where that is no file, or one of more than ``at_most_bytes``."""
    refuse_pipes_and_devices(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and no report has more than {at_most_bytes:,}")
        try:
            return file.read()
        except MemoryError:
            raise OSError(errno.ENOMEM, f"it has {size:,} bytes, for which there is no memory") from None


def ensure_folder(directory: PathLike) -> Path:
    """Return ``directory``, made if need be. Raises ReportError where it cannot be."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"the folder {str(folder)!r} for the report cannot be made: {error.strerror}") from error
    return folder


@contextmanager
def atomic_write(path: PathLike) -> Iterator[Path]:
    """Give a temporary path in the same folder, of the same ending; when the block ends well, it becomes ``path``.

    A symbolic link is followed. Raises ReportError where the folder cannot be written, or something else than a file is to be
    replaced.
    """
    target = Path(os.path.realpath(path))
    try:
        _refuse_other_than_file(target)
        temporary = _temporary(target)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # a temporary file is private, a report is not
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"the report {str(path)!r} cannot be written: {error.strerror or error}") from error


def check_atomic_write(path: PathLike) -> None:
    """Find out whether ``atomic_write(path)`` can work, folders that are missing included; nothing of the trial stays.

    Raises OSError where it cannot.
    """
    target = Path(os.path.realpath(path))
    _refuse_other_than_file(target)
    missing = [folder for folder in target.parents if file_kind(folder) is None]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _temporary(target).unlink()
        if file_kind(target) is None:  # its own name is tried too: it may be longer, or of signs that the folder cannot take
            with open(target, "xb"):
                pass
            target.unlink()
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


def _refuse_other_than_file(target: Path) -> None:
    """Raise OSError where ``target`` is a folder, or a device, which a user who may do anything could lose to a file."""
    what = file_kind(target)
    if what not in (None, FILE):
        raise OSError(errno.EEXIST, f"it is {what}, not a file")


def _temporary(target: Path) -> Path:
    """Make an empty file beside ``target``, whose name has the begin and the end of its name, and return its path."""
    begin, end = target.stem[:_NAME_PART], target.suffix[-_NAME_PART:]
    handle, name = tempfile.mkstemp(prefix=f".{begin}.", suffix=end, dir=target.parent)
    os.close(handle)
    return Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
