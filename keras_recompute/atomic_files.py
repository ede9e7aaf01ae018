"""Files that are written atomically, and reads that are bounded in size and time.

A file appears whole or not at all, so that a reader never finds half of one.
"""

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
_OTHERS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Characters of the name that a temporary file's name repeats. With 4 bytes each it stays below the
# limit of 255 bytes.
_NAME_PART = 20


def file_kind(path: PathLike) -> str | None:
    """Return FILE, FOLDER, "a pipe", "a socket" or "a device" for ``path``, or None.

    Raises OSError where the system does not say, as for a name that is too long or for links in a
    circle.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    return (
        FILE
        if stat.S_ISREG(mode)
        else FOLDER
        if stat.S_ISDIR(mode)
        else _OTHERS.get(stat.S_IFMT(mode), "no file")
    )


def refuse_pipes_and_devices(path: PathLike) -> None:
    """Raise OSError if ``path`` is a pipe, a socket or a device."""
    # Opening a pipe waits for its writer, and a device may never end.
    what = file_kind(path)
    if what not in (None, FILE, FOLDER):
        raise OSError(errno.EINVAL, f"it is {what}, not a file: write its content to a file first")


def read_whole(path: PathLike, *, at_most_bytes: int) -> bytes:
    """Return the contents of the file ``path``, at most ``at_most_bytes``.

    Raises OSError for anything but a file, and for a larger one.
    """
    refuse_pipes_and_devices(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most_bytes:
            raise OSError(
                errno.EFBIG, f"it has {size:,} bytes, and a report has at most {at_most_bytes:,}"
            )
        try:
            return file.read()
        except MemoryError:
            raise OSError(
                errno.ENOMEM, f"it has {size:,} bytes, more than this machine has memory for"
            ) from None


def ensure_folder(directory: PathLike) -> Path:
    """Create ``directory`` if it does not exist, and return its path.

    Raises ReportError if it cannot be created.
    """
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"the folder {str(folder)!r} for the report cannot be created: {error.strerror}"
        ) from error
    return folder


@contextmanager
def atomic_write(path: PathLike) -> Iterator[Path]:
    """Give a temporary path that replaces ``path`` when the block ends without an error.

    The temporary file is in the same folder and has the same suffix. A symbolic link is followed.
    Raises ReportError if the folder cannot be written, or if ``path`` is not a file.
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
        raise ReportError(
            f"the report {str(path)!r} cannot be written: {error.strerror or error}"
        ) from error


def check_atomic_write(path: PathLike) -> None:
    """Raise OSError unless ``atomic_write(path)`` could work; leave no trace of the trial.

    Folders that are missing are made for the trial and removed.
    """
    target = Path(os.path.realpath(path))
    _refuse_other_than_file(target)
    missing = [folder for folder in target.parents if file_kind(folder) is None]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _temporary(target).unlink()
        # Its own name may be longer than the temporary one, or have characters that the file
        # system refuses.
        if file_kind(target) is None:
            with open(target, "xb"):
                pass
            target.unlink()
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


def _refuse_other_than_file(target: Path) -> None:
    """Raise OSError if ``target`` is a folder or a device, which root could replace by a file."""
    what = file_kind(target)
    if what not in (None, FILE):
        raise OSError(errno.EEXIST, f"it is {what}, not a file")


def _temporary(target: Path) -> Path:
    """Create an empty file beside ``target``, named after it, and return its path."""
    begin, end = target.stem[:_NAME_PART], target.suffix[-_NAME_PART:]
    handle, name = tempfile.mkstemp(prefix=f".{begin}.", suffix=end, dir=target.parent)
    os.close(handle)
    return Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
