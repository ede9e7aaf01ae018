"""What stands in the folder that saves go to, and in each save, by name."""

from __future__ import annotations

import re

MODEL, OPTIMIZER, STATE = "model.keras", "optimizer.npz", "state.json"
FILES = (MODEL, OPTIMIZER, STATE)  # of a save
LOCK = ".lock"  # is held by the run that saves into the folder
PARTIAL = ".partial-"  # begins the name of a folder whose save is being written
SAVE = re.compile(r"update-([0-9]{8}|[1-9][0-9]{8,})")  # of eight digits at least


def name_of_save(updates: int) -> str:
    """Return the name of the folder of the save after so many updates."""
    return f"update-{updates:08d}"


def is_taken(name: str) -> bool:
    """Whether a run may write under ``name`` in the folder that its saves go to."""
    return name == LOCK or name.startswith(PARTIAL) or bool(SAVE.fullmatch(name))
