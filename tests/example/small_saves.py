"""Saves without a network in them, whole, changed, and as keras-recompute 0.2.0 wrote them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from lstm_example.saves import MODEL, OPTIMIZER, STATE, write_save

VERSIONS = {"python": "3.12.0", "tensorflow": "2.21.0", "keras": "3.15.0"}


def small_save(folder: Path, updates: int, **options) -> Path:
    """Write a save after so many updates into ``folder`` and return its path."""

    def write(path: Path) -> None:
        (path / MODEL).write_bytes(b"model")
        (path / OPTIMIZER).write_bytes(b"optimizer")

    folder.mkdir(exist_ok=True)
    figures = {"losses": [5.5] * updates, "gradient_norms": [1.0] * updates, "validation": []}
    state = {"updates": updates, "settings": {}, "versions": VERSIONS, **figures}
    state["trained_seconds"] = 1.0
    return write_save(folder, state, options.pop("write", write), keep=options.pop("keep", 3))


def state_of(save: Path) -> dict:
    """Return the state without the digest of it."""
    state = json.loads((save / STATE).read_text())
    return {name: value for name, value in state.items() if name != "sha256_of_the_above"}


def change(**changes):
    """Return what changes the state of a save, and gives it the digest of what is there now."""

    def wrong(save: Path) -> None:
        text = json.dumps({**state_of(save), **changes}, indent=1)
        begin = text[:-2] + ",\n"
        digest = hashlib.sha256(begin.encode()).hexdigest()
        (save / STATE).write_text(f'{begin} "sha256_of_the_above": "{digest}"\n}}')

    return wrong


def as_0_2_0_wrote(**changes):
    """Return what makes a save one of version 1, which has no digest of its state."""

    def older(save: Path) -> None:
        state = {**state_of(save), "schema_version": 1, **changes}
        (save / STATE).write_text(json.dumps(state, indent=1))

    return older
