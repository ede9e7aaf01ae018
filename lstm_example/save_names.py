"""Names of the files in a folder of saves, and in each save."""

from __future__ import annotations

import re

MODEL, OPTIMIZER, STATE = "model.keras", "optimizer.npz", "state.json"
FILES = (MODEL, OPTIMIZER, STATE)  # of a save
LOCK = ".lock"  # locked by the run that saves into the folder
PARTIAL = ".partial-"  # prefix of the folder of an unfinished save
SAVE = re.compile(r"update-([0-9]{8}|[1-9][0-9]{8,})")  # of eight digits at least


def name_of_save(updates: int) -> str:
    """Return the folder name of the save after ``updates`` updates."""
    return f"update-{updates:08d}"


def is_taken(name: str) -> bool:
    """Whether a run may write a file ``name`` in its folder of saves."""
    return name == LOCK or name.startswith(PARTIAL) or bool(SAVE.fullmatch(name))
