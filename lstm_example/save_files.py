"""Files in a folder of saves: their names, and removal of files that runs wrote.

A folder counts as written by a run if it is no link and holds only plain files with the names that
a run gives. Files that a user put there stay.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Collection

MODEL, OPTIMIZER, STATE = "model.keras", "optimizer.npz", "state.json"
FILES = (MODEL, OPTIMIZER, STATE)  # of a save
LOCK = ".lock"  # locked by the run that saves into the folder
PARTIAL = ".partial-"  # prefix of the folder of an unfinished save
SAVE = re.compile(r"update-([0-9]{8}|[1-9][0-9]{8,})")  # of eight digits at least
_MADE = re.compile(re.escape(PARTIAL) + r"[a-z0-9_]{8}")  # as tempfile.mkdtemp names it
_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}")  # Keras's, of weights, where memory is short


def name_of_save(updates: int) -> str:
    """Return the folder name of the save after ``updates`` updates."""
    return f"update-{updates:08d}"


def is_taken(name: str) -> bool:
    """Whether a run may write a file ``name`` in its folder of saves."""
    return name == LOCK or name.startswith(PARTIAL) or bool(SAVE.fullmatch(name))


def remove_save(path: Path, names: Collection[str] = FILES) -> None:
    """Remove a folder of files of these ``names``. Raises OSError if it is anything else."""
    if path.is_symlink():
        raise OSError("it is a symbolic link")
    if not path.is_dir():
        raise OSError("it is not a folder")
    entries = list(path.iterdir())
    for entry in entries:
        if entry.name not in names or not stat.S_ISREG(entry.lstat().st_mode):
            raise OSError(f"no run wrote {entry.name!r} in it")
    for entry in entries:
        entry.unlink()
    path.rmdir()


def remove_unfinished(folder: Path) -> None:
    """Remove saves in ``folder`` that runs left unfinished."""
    for path in folder.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            found = set(os.listdir(path))
            # A run's unfinished save has a temporary name, or a state but not all its files. A
            # complete one under another name is a user's copy.
            if _MADE.fullmatch(path.name) or (STATE in found and not found >= set(FILES)):
                remove_save(path, {*FILES, *filter(_TEMPORARY.fullmatch, found)})
