"""Write a report into a folder."""

from __future__ import annotations

import os
from pathlib import Path

from ..files import made_folder, replacing
from ..liveness import Program

JSON_NAME, FIGURE_NAME, SERIALIZED_NAME = "liveness.json", "liveness.png", "liveness.hlo_proto.pb"


def write_report(
    program: Program, directory: str | os.PathLike[str], *, title: str | None = None, serialized: bytes | None = None
) -> list[Path]:
    """Write ``liveness.json`` and ``liveness.png`` into ``directory``, made if need be; return their paths.

    ``serialized``, the program as XLA has it (``liveness.compile_program``), is kept beside them as
    ``liveness.hlo_proto.pb``: XProf's memory viewer reads it, the report does not need it.

    Each file appears whole or not at all, and replaces an older one. Raises ReportError where it cannot be written.
    """
    from .figures import liveness_figure

    folder = made_folder(directory)
    data, figure, kept = folder / JSON_NAME, folder / FIGURE_NAME, folder / SERIALIZED_NAME
    with replacing(data) as temporary:
        temporary.write_text(program.to_json(), encoding="utf-8")
    liveness_figure(program, figure, title=title)
    if serialized is None:
        kept.unlink(missing_ok=True)  # that of an older report is not this program
        return [data, figure]
    with replacing(kept) as temporary:
        temporary.write_bytes(serialized)
    return [data, figure, kept]
