"""Removal of saves that runs wrote, and of nothing else in their folder.

A folder counts as written by a run if it is no link and holds only plain files with the names that
a run gives. Files that a user put there stay.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from .save_names import FILES, PARTIAL, STATE

_MADE = re.compile(re.escape(PARTIAL) + r"[a-z0-9_]{8}")  # as tempfile.mkdtemp names it
_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}")  # Keras's, of weights, where memory is short


def remove_save(path: Path) -> None:
    """Remove the folder of a save. Raises OSError with the reason if a run did not write it."""
    _refuse_others(path, set(FILES))
    _remove(path)


def remove_unfinished(folder: Path) -> None:
    """Remove saves in ``folder`` that runs left unfinished."""
    for path in folder.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            found = set(os.listdir(path))
            _refuse_others(path, {*FILES, *filter(_TEMPORARY.fullmatch, found)})
            # A run's unfinished save has a temporary name, or a state but not all its files. A
            # complete one under another name is a user's copy.
            if _MADE.fullmatch(path.name) or (STATE in found and not found >= set(FILES)):
                _remove(path)


def _refuse_others(path: Path, names: set[str]) -> None:
    """Raise OSError if ``path`` is no folder, or holds anything but files of ``names``."""
    if path.is_symlink():
        raise OSError("it is a symbolic link")
    if not path.is_dir():
        raise OSError("it is not a folder")
    for entry in path.iterdir():
        if entry.name not in names or not stat.S_ISREG(entry.lstat().st_mode):
            raise OSError(f"no run wrote {entry.name!r} in it")


def _remove(path: Path) -> None:
    for entry in path.iterdir():
        entry.unlink()
    path.rmdir()
