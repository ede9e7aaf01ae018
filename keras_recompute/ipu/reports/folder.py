"""The folder of one compiled program's reports: writing and reading it.

    tf_report__<date>__<pid>/profile.pop           the program, in this project's own format
                             keras_recompute.json  the layers' IPUs, and the runs
                             framework.json        framework, model and configuration
                             debug.cbor            the origin of each program step

The SDK has the contents of ``keras_recompute.json`` in its ``profile.pop``. The last two are
written with ``autoReport.all``. Loads no TensorFlow. Source: Graphcore, PopVision.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from ...atomic_files import PathLike, atomic_write
from ...errors import ReportError
from ...liveness import Profile, Program, is_profile_pop, read_profile_pop
from ...liveness.profile_pop import POP_NAME
from .cbor import encode
from .tile_estimate import NOTE, Placement, TileEstimate

DETAILS_NAME, FRAMEWORK_NAME, DEBUG_NAME = "keras_recompute.json", "framework.json", "debug.cbor"


def new_folder(directory: PathLike) -> Path:
    """Create and return a folder named after the current time and process."""
    while True:
        when = datetime.now().isoformat(timespec="microseconds").replace(":", "-")
        folder = Path(directory) / f"tf_report__{when}__{os.getpid()}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            # The name is taken by a report of the same microsecond: a later time gives another.
            if folder.is_dir():
                continue
            raise
        return folder


def write_details(folder: Path, placement: Placement, runs: list[dict[str, Any]]) -> None:
    """Write the layers' IPUs and the runs, which ``read_folder`` reads."""
    _write_json(folder / DETAILS_NAME, {"note": NOTE, "placement": asdict(placement), "runs": runs})


def write_framework(folder: Path, framework: dict[str, Any]) -> None:
    """Write ``framework.json``."""
    _write_json(folder / FRAMEWORK_NAME, {"note": NOTE, **framework})


def write_debug(folder: Path, program: Program) -> None:
    """Write ``debug.cbor``: the origin of each program step and buffer.

    A step has its operation, layer and phase, and a buffer its source line.
    """
    steps = [
        {"instruction": s.instruction, "op_name": s.op_name, "layer": s.layer, "phase": s.phase}
        for s in program.steps
    ]
    sources = {b.name: b.source for b in program.buffers if b.source}
    with atomic_write(folder / DEBUG_NAME) as temporary:
        temporary.write_bytes(encode({"note": NOTE, "steps": steps, "sources": sources}))


def read_folder(path: PathLike) -> tuple[TileEstimate, list[dict[str, Any]]]:
    """Return the bytes by IPU and tile, and the runs, of a ``profile.pop`` or its folder.

    Raises ReportError if it cannot be read.
    """
    pop = Path(path, POP_NAME) if Path(path).is_dir() else Path(path)
    if pop.exists() and not is_profile_pop(pop):
        raise ReportError(
            f"{str(pop)!r} was not written by keras_recompute.ipu: open it with the Poplar SDK's "
            "own pva"
        )
    profile: Profile = read_profile_pop(pop)
    details = pop.parent / DETAILS_NAME
    if not details.exists():
        return TileEstimate(profile), []
    try:
        found = json.loads(details.read_text(encoding="utf-8"))
        placement = Placement(**found["placement"])
        return TileEstimate(profile, placement), list(found["runs"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportError(
            f"{str(details)!r} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` to ``path`` as indented JSON."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
