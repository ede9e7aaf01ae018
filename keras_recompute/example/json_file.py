"""The figures of a run as a JSON file, or where that cannot be written, on standard output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

from ..errors import ReportError
from ..report.files import replacing


def write_figures(figures: Mapping[str, Any], path: Path | None) -> None:
    """Write ``figures`` to ``path``, whole or not at all; nothing without a path.

    Raises ReportError where the file cannot be written; the figures are printed then, so that they are not lost.
    """
    if path is None:
        return
    text = json.dumps(dict(figures), indent=1) + "\n"  # of a copy: what still trains may be adding to them
    try:
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except ReportError as error:
        print(text, end="", flush=True)
        raise ReportError(f"{error}; the figures are printed instead") from error
