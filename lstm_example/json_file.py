"""The figures of a run as a JSON file, or on standard output if that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keras_recompute.atomic_files import atomic_write
from keras_recompute.errors import ReportError


def write_figures(figures: dict[str, Any], path: Path) -> None:
    """Write ``figures`` to ``path``, whole or not at all.

    Raises ReportError if the file cannot be written. The figures are then printed, so that they are
    not lost.
    """
    text = json.dumps(figures, indent=1) + "\n"
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except ReportError as error:
        print(text, end="", flush=True)
        raise ReportError(f"{error}; the figures are printed instead") from error
