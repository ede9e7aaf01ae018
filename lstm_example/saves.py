"""Saves of a run: folders ``update-N`` that appear whole or not at all.

A save holds ``model.keras``, the network as Keras opens it, ``optimizer.npz``, and ``state.json``
with the updates done, the figures, options and versions of the run, and a digest of each file.
Loads no TensorFlow.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from keras_recompute.atomic_files import FILE, file_kind, read_whole, refuse_pipes_and_devices
from keras_recompute.errors import InvalidArgumentError, RecomputeError, ReportError
from keras_recompute.report.output import print_error

from .path_failures import refuse_path
from .save_files import (
    LOCK,
    MODEL,
    OPTIMIZER,
    PARTIAL,
    SAVE,
    STATE,
    name_of_save,
    remove_save,
    remove_unfinished,
)
from .save_state import DamagedStateError, NewerStateError, decode_state, encode_state

_STATE_BYTES_AT_MOST = 2**30


@dataclass(frozen=True)
class Save:
    """A save: its folder and the contents of its ``state.json``."""

    path: Path
    state: dict[str, Any]

    @property
    def updates(self) -> int:
        """The number of updates of the optimiser before the save."""
        return int(self.state["updates"])


class SaveError(RecomputeError):
    """The network cannot be saved."""


def last_save(folder: Path, said_by: str) -> Save | None:
    """Return the last save in ``folder``, or None.

    Raises InvalidArgumentError if it cannot be read or is damaged. ``said_by`` begins the message.
    """
    with refuse_path(f"{said_by} {folder}", "it cannot be read"):
        paths = _paths(folder)
    return _read(paths[-1], said_by) if paths else None


def write_save(
    folder: Path, state: dict[str, Any], write_files: Callable[[Path], None], *, keep: int
) -> Path:
    """Write a save after ``state["updates"]`` updates, whole or not at all, and return its path.

    ``write_files`` writes MODEL and OPTIMIZER into the folder it is given. The last ``keep`` saves
    of runs stay. Raises SaveError.
    """
    target = folder / name_of_save(state["updates"])
    partial = None
    try:
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder))
        write_files(partial)
        # A digest of each file, so that a damaged save is refused when it is loaded.
        digests = {name: _digest(partial / name) for name in (MODEL, OPTIMIZER)}
        (partial / STATE).write_bytes(encode_state({**state, "sha256": digests}))
        # Before renaming, so that a save under its final name is always complete.
        for path in (*partial.iterdir(), partial):
            _flush_to_disk(path)
        # mkdtemp makes private folders, but saves are shared like other files.
        partial.chmod(0o755)
        partial.replace(target)
        _flush_to_disk(folder)
    # On a full disk h5py, by which Keras writes, raises RuntimeError and ValueError too.
    except (OSError, RuntimeError, ValueError) as error:
        last = "there is no save yet"
        for save in list_saves(folder)[-1:]:
            last = f"the last save is {save.name}, and --resume continues from it"
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise SaveError(f"{target} cannot be written ({why:.200}): {last}") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
    _remove_old(folder, keep)
    return target


def _remove_old(folder: Path, keep: int) -> None:
    """Remove all but the last ``keep`` saves; warn once of one that cannot be removed."""
    for old in list_saves(folder)[:-keep]:
        try:
            remove_save(old)
        except OSError as error:
            why = f"--keep {keep}: {old} cannot be removed: {error.strerror or error}"
            if old not in _said_to_stay:
                print_error(f"warning: {why}")
            _said_to_stay.add(old)


_said_to_stay: set[Path] = set()


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Create ``folder`` and lock it for this run; remove unfinished saves.

    Raises InvalidArgumentError if another run holds it, or it cannot be written.
    """
    with refuse_path(f"--save {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = _open_lock(folder / LOCK)
    try:
        # The lock ends with the process, however it ends, so no stale one can remain.
        _hold(lock, folder)
        remove_unfinished(folder)
        yield
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    """Return a descriptor of the lock file, created if it does not exist; nothing is written.

    Raises OSError if something else is there.
    """
    what = "a symbolic link" if path.is_symlink() else file_kind(path)
    if what not in (None, FILE):
        raise OSError(None, f"{path} is {what} instead of a run's lock file: remove it")
    # No link is followed, which may have appeared there since, and no pipe is waited for.
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)


def _hold(lock: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    # Some file systems over a network have no locks.
    with refuse_path(f"--save {folder}", "it cannot be locked for this run"):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgumentError(
                f"--save {folder}: another run saves there; choose another folder"
            ) from None


def _paths(folder: Path) -> list[Path]:
    """Return the saves in ``folder``, oldest first."""
    found = folder.iterdir() if folder.exists() else ()
    saves = [path for path in found if SAVE.fullmatch(path.name)]
    return sorted(saves, key=lambda path: int(path.name.rpartition("-")[2]))


def list_saves(folder: Path) -> list[Path]:
    """Return the paths of the saves in ``folder``, oldest first; none if it cannot be read."""
    with contextlib.suppress(OSError):
        return _paths(folder)
    return []


def _read(path: Path, said_by: str) -> Save:
    def damaged(why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{said_by} {path}: {why}; remove this save to use the one before it"
        )

    try:
        state = decode_state(read_whole(path / STATE, at_most_bytes=_STATE_BYTES_AT_MOST))
        digests = state["sha256"]
        for name in sorted({MODEL, OPTIMIZER, *digests}):
            if name not in (MODEL, OPTIMIZER) or digests.get(name) != _digest(path / name):
                raise damaged(f"{name} has changed since it was written")
        if path.name != name_of_save(state["updates"]):
            raise damaged(
                f"it has changed since it was written: {STATE} is of update {state['updates']}"
            )
    except NewerStateError:
        raise InvalidArgumentError(
            f"{said_by} {path}: a newer keras-recompute wrote it; upgrade to continue from it"
        ) from None
    except DamagedStateError as error:
        raise damaged(str(error)) from None
    except (OSError, ReportError) as error:
        raise damaged(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return Save(path, state)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError for a pipe or device, which may never end."""
    refuse_pipes_and_devices(path)
    found = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(2**20), b""):
            found.update(piece)
    return found.hexdigest()


def _flush_to_disk(path: Path) -> None:
    """Wait until ``path`` is on the disk, so that a save survives a power failure whole."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
