"""Output files of the example, checked before training: what could not be written at the end is refused at the start."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..errors import InvalidArgumentError
from ..report.files import FIGURE_NAME, FILE, FOLDER, JSON_NAME, SERIALIZED_NAME, kind, try_replacing
from ..report.page import PAGE_NAME
from ..report.sweep import SWEEP_NAMES

# What a run writes into its report folder, or removes from there because it would be of another run.
REPORT_NAMES = (JSON_NAME, FIGURE_NAME, SERIALIZED_NAME, PAGE_NAME)


def check_outputs(arguments: argparse.Namespace) -> None:
    """Find out whether the results can be written, by trying it; nothing of the trial stays. Raises InvalidArgumentError."""
    names = REPORT_NAMES if arguments.sweep is None else SWEEP_NAMES
    for option, path, wanted, written in (
        ("--report", arguments.report, FOLDER, [arguments.report / name for name in names] if arguments.report else []),
        ("--json", arguments.json, FILE, [arguments.json]),
    ):
        if path is None:
            continue
        try:
            _check_place(option, path, wanted, arguments.force)
            for file in written:
                try_replacing(file)
        except OSError as error:
            raise InvalidArgumentError(f"{option} {path}: it cannot be written ({error.strerror})") from None
    _check_apart(arguments, names)


def _check_place(option: str, path: Path, wanted: str, force: bool) -> None:
    """Check what stands at ``path``. Raises InvalidArgumentError, or OSError where the system does not tell."""
    for link in (path, *path.parents):
        if link.is_symlink() and kind(link) is None:
            raise InvalidArgumentError(
                f"{option} {path}: {link} is a symbolic link to {os.readlink(link)}, which does not exist; "
                f"remove it or choose another name"
            )
    what = kind(os.path.realpath(path))  # of the real path: "new/.." stands there before "new" does
    if what not in (None, wanted):
        raise InvalidArgumentError(f"{option} {path}: it exists already and is {what}, not {wanted}; choose another name")
    if what and not force:
        raise InvalidArgumentError(f"{option} {path}: it exists already; choose another name, or write over it with --force")
    if wanted == FILE and kind(path.parent) is None:
        raise InvalidArgumentError(f"{option} {path}: the folder {path.parent} does not exist; make it first")


def _check_apart(arguments: argparse.Namespace, names: tuple[str, ...]) -> None:
    """Check that no result is written over another one, or over the text to learn. Raises InvalidArgumentError."""
    report, json, text = (path and Path(os.path.realpath(path)) for path in (arguments.report, arguments.json, arguments.text))
    written = {Path(os.path.realpath(report / name)) for name in names} if report else set()
    if json and report and json in (report, *report.parents):
        why = f"the folder of --report {arguments.report} is to stand there"
    elif json and json in written:
        why = f"--report {arguments.report} has a file of its own there"
    elif json and json == text:
        why = "that is the text to learn"
    elif text in written:
        raise InvalidArgumentError(
            f"--report {arguments.report}: it would write over {arguments.text}, the text to learn; choose another name"
        )
    else:
        return
    raise InvalidArgumentError(f"--json {arguments.json}: {why}; choose another name")
