"""Saves of a run: folders ``update-N`` that appear whole or not at all, and the last of them to go on from.

A save holds ``model.keras``, the network as Keras opens it, ``optimizer.npz``, and ``state.json``: how far the run came, its
figures, what it was asked for, the versions it ran with, and a digest of each file. Loads no TensorFlow.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from ..errors import InvalidArgumentError, RecomputeError, ReportError
from ..files import read_whole

MODEL, OPTIMIZER, STATE = "model.keras", "optimizer.npz", "state.json"
FORMAT, SCHEMA_VERSION = "keras-recompute training save", 1
_NAME, _PARTIAL, _LOCK = re.compile(r"update-(\d{8,})"), ".partial-", ".lock"
_STATE_BYTES_AT_MOST = 2**30
_KINDS: dict[str, type | tuple[type, ...]] = {  # of what a run that goes on reads of the state
    "settings": dict,
    "versions": dict,
    "losses": list,
    "gradient_norms": list,
    "validation": list,
    "trained_seconds": (int, float),
}


@dataclass(frozen=True)
class Save:
    """One save: its folder, and its ``state.json``."""

    path: Path
    state: dict[str, Any]

    @property
    def updates(self) -> int:
        """How many updates of the optimiser had been done."""
        return int(self.state["updates"])


class SaveError(RecomputeError):
    """What was trained cannot be saved."""


def last_save(folder: Path, said_by: str) -> Save | None:
    """Return the last save in ``folder``, whole and undamaged; None where there is none.

    Raises InvalidArgumentError for one that cannot be read or is not as it was written; ``said_by`` begins the message.
    """
    try:
        paths = _paths(folder)
    except OSError as error:
        raise InvalidArgumentError(f"{said_by} {folder}: it cannot be read ({error.strerror})") from None
    return _read(paths[-1], said_by) if paths else None


def write_save(folder: Path, state: dict[str, Any], write_files: Callable[[Path], None], *, keep: int) -> Path:
    """Write a save after ``state["updates"]`` updates, whole or not at all, and remove all but the last ``keep``.

    ``write_files`` puts MODEL and OPTIMIZER into the folder that it is given. Raises SaveError.
    """
    target = folder / f"update-{state['updates']:08d}"
    partial = None
    try:
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
        write_files(partial)
        digests = {name: _digest(partial / name) for name in (MODEL, OPTIMIZER)}
        text = json.dumps({"format": FORMAT, "schema_version": SCHEMA_VERSION, **state, "sha256": digests}, indent=1)
        (partial / STATE).write_text(text, encoding="utf-8")
        for path in (*partial.iterdir(), partial):
            _reach_the_disk(path)
        partial.chmod(0o755)
        partial.replace(target)
        _reach_the_disk(folder)
        for old in _paths(folder)[:-keep]:
            shutil.rmtree(old)
    except OSError as error:
        there = paths_of_saves(folder)
        last = f"the last save is {there[-1].name}, and --resume goes on from it" if there else "there is no save yet"
        raise SaveError(f"{target} cannot be written ({error.strerror or error}): {last}") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
    return target


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Make ``folder`` and hold it for this run alone; remove what runs left there that were ended while they wrote.

    Raises InvalidArgumentError where another run holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise InvalidArgumentError(f"--save {folder}: it cannot be written ({error.strerror})") from None
    with lock:
        _hold(lock, folder)
        for left in folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _hold(lock: Any, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidArgumentError(f"--save {folder}: another run saves there; choose another folder") from None


def _paths(folder: Path) -> list[Path]:
    """Return the saves in ``folder``, the last one last."""
    if not folder.exists():
        return []
    found = {int(match.group(1)): path for path in folder.iterdir() for match in [_NAME.fullmatch(path.name)] if match}
    return [found[number] for number in sorted(found)]


def paths_of_saves(folder: Path) -> list[Path]:
    """Return the paths of the saves in ``folder``, the oldest first; none where it cannot be read."""
    try:
        return _paths(folder)
    except OSError:
        return []


def _read(path: Path, said_by: str) -> Save:
    def damaged(why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{said_by} {path}: {why}; remove that save to take the one before it")

    try:
        state = json.loads(read_whole(path / STATE, at_most_bytes=_STATE_BYTES_AT_MOST))
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise damaged("it is no save of recompute_lstm.py")
        if not isinstance(state.get("schema_version"), int) or state["schema_version"] > SCHEMA_VERSION:
            raise InvalidArgumentError(f"{said_by} {path}: a newer keras-recompute wrote it; upgrade to go on from it")
        for name, digest in state["sha256"].items():
            if name not in (MODEL, OPTIMIZER) or _digest(path / name) != digest:
                raise damaged(f"{name} is not as it was written")
        if {MODEL, OPTIMIZER} - state["sha256"].keys() or path.name != f"update-{state['updates']:08d}":
            raise damaged("it is not as it was written")
        wrong = [name for name, kind in _KINDS.items() if not isinstance(state[name], kind)]
        if wrong or len(state["losses"]) != state["updates"]:
            raise damaged(f"{STATE} is damaged")
    except InvalidArgumentError:
        raise
    except (OSError, ReportError) as error:
        raise damaged(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(f"{STATE} is damaged") from None
    return Save(path, state)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(2**20), b""):
            found.update(piece)
    return found.hexdigest()


def _reach_the_disk(path: Path) -> None:
    """Wait until ``path`` is on the disk, so that a save that is there after a power failure is whole."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
