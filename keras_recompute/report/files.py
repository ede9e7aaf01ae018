"""Writing of a report into a folder: record, figure, and optionally the program and a page."""

from __future__ import annotations

import os
from pathlib import Path

from ..atomic_files import atomic_write, ensure_folder
from ..errors import ReportError
from ..liveness import Program

JSON_NAME, FIGURE_NAME, SERIALIZED_NAME = "liveness.json", "liveness.png", "liveness.hlo_proto.pb"


def write_report(
    program: Program,
    directory: str | os.PathLike[str],
    *,
    title: str | None = None,
    serialized: bytes | None = None,
    page: bool = False,
) -> list[Path]:
    """Write ``liveness.json`` and ``liveness.png`` into ``directory``; return their paths.

    The folder is created if it does not exist. Each file appears whole or not at all and replaces
    an older one. Optional files that are not asked for are removed, since they would show another
    program.

    Args:
        program: The record.
        directory: The folder.
        title: The heading of the figure and the page.
        serialized: The program in XLA's format (``liveness.compile_program``), written as
            ``liveness.hlo_proto.pb``. XProf's memory viewer reads it; the report does not need it.
        page: Also write ``liveness.html``. It takes 5 MB whatever the program, since plotly.js is
            in it; the command line makes one of any report.

    Raises:
        ReportError: A file cannot be written, or a drawing library is not installed.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> [path.name for path in kr.report.write_report(program, "report")]
        ['liveness.json', 'liveness.png']
    """
    from .figures import liveness_figure
    from .optional_imports import DRAWING, PAGES, check_installed
    from .page import PAGE_NAME, write_page

    # Before anything is written: a report is complete or not begun.
    check_installed((*DRAWING, *PAGES) if page else DRAWING)
    folder = ensure_folder(directory)
    names = JSON_NAME, FIGURE_NAME, SERIALIZED_NAME, PAGE_NAME
    data, figure, kept, html = map(folder.joinpath, names)
    with atomic_write(data) as temporary:
        temporary.write_text(program.to_json(), encoding="utf-8")
    liveness_figure(program, figure, title=title)
    paths = [data, figure]
    if serialized is None:
        # A file of an earlier report would show another program.
        _remove(kept)
    else:
        with atomic_write(kept) as temporary:
            temporary.write_bytes(serialized)
        paths.append(kept)
    if page:
        paths.append(write_page([(title or program.name, program)], html))
    else:
        _remove(html)
    return paths


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(
            f"{str(path)!r} belongs to another report and cannot be removed: {error.strerror}"
        ) from error
