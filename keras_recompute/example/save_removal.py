"""What a run may remove from the folder that its saves go to: what runs wrote there, and nothing
else.

A folder is a run's where it is no link and holds nothing but plain files with the names that a run
gives them. What a user put there or into it stays.
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
    """Remove the folder of a save. Raises OSError, whose text says why, where it is no run's."""
    _refuse_others(path, set(FILES))
    _remove(path)


def remove_unfinished(folder: Path) -> None:
    """Remove the saves that runs left in ``folder`` which were ended while they wrote."""
    for path in folder.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            found = set(os.listdir(path))
            _refuse_others(path, {*FILES, *filter(_TEMPORARY.fullmatch, found)})
            # By its name, or by a state without all that it tells of. A whole one under another
            # name is a copy that somebody made.
            if _MADE.fullmatch(path.name) or (STATE in found and not found >= set(FILES)):
                _remove(path)


def _refuse_others(path: Path, names: set[str]) -> None:
    """Raise OSError where ``path`` is no folder, or holds something that is not a file of
    ``names``.
    """
    if path.is_symlink():
        raise OSError("it is a symbolic link")
    if not path.is_dir():
        raise OSError("it is no folder")
    for entry in path.iterdir():
        if entry.name not in names or not stat.S_ISREG(entry.lstat().st_mode):
            raise OSError(f"no run wrote {entry.name!r} into it")


def _remove(path: Path) -> None:
    for entry in path.iterdir():
        entry.unlink()
    path.rmdir()
