"""Checks of the example's output files before training, so that errors do not come at its end."""

from __future__ import annotations

import os
from pathlib import Path

from keras_recompute.atomic_files import FILE, FOLDER, check_atomic_write, file_kind
from keras_recompute.errors import InvalidArgumentError, ReportError
from keras_recompute.report.files import FIGURE_NAME, JSON_NAME, SERIALIZED_NAME
from keras_recompute.report.optional_imports import DRAWING, check_installed
from keras_recompute.report.page import PAGE_NAME

from .event_log import check_log
from .options import Options
from .path_failures import refuse_path
from .save_files import PARTIAL, is_taken, name_of_save
from .sweep_report import SWEEP_NAMES

# Files that a run writes into its report folder, or removes there since they are another run's.
REPORT_NAMES = (JSON_NAME, FIGURE_NAME, SERIALIZED_NAME, PAGE_NAME)


def check_outputs(options: Options) -> None:
    """Raise InvalidArgumentError if a result could not be written; leave no trace of the trial."""
    names = REPORT_NAMES if options.sweep is None else SWEEP_NAMES
    for option, path, wanted, files in (
        ("--report", options.report, FOLDER, names),
        ("--json", options.json, FILE, ("",)),
    ):
        if path is None:
            continue
        with refuse_path(f"{option} {path}"):
            _check_place(option, path, wanted, options.force)
            for name in files:
                check_atomic_write(path / name)
    if options.report:
        try:
            check_installed(DRAWING)
        except ReportError as error:
            raise InvalidArgumentError(f"--report {options.report}: {error}") from None
    if options.save:
        _check_save(options.save)
    if options.log:
        check_log(options.log)
    _check_apart(options, names)


def _check_place(option: str, path: Path, wanted: str, force: bool) -> None:
    """Check what is at ``path``. Raises InvalidArgumentError, or OSError if that cannot be told."""
    # Writing would follow a dangling link, to a place that was not checked.
    for link in (path, *path.parents):
        if link.is_symlink() and file_kind(link) is None:
            raise InvalidArgumentError(
                f"{option} {path}: {link} is a symbolic link to {os.readlink(link)}, which does "
                "not exist; remove it or choose another name"
            )
    # Resolved, since "new/.." exists before "new" does.
    what = file_kind(os.path.realpath(path))
    if what not in (None, wanted):
        raise InvalidArgumentError(
            f"{option} {path}: it exists already and is {what}, not {wanted}; choose another name"
        )
    if what and not force:
        raise InvalidArgumentError(
            f"{option} {path}: it exists already; choose another name, or overwrite it with --force"
        )
    if wanted == FILE and file_kind(path.parent) is None:
        raise InvalidArgumentError(
            f"{option} {path}: the folder {path.parent} does not exist; create it first"
        )


def _check_save(folder: Path) -> None:
    """Raise InvalidArgumentError if ``--save`` could not be written."""
    with refuse_path(f"--save {folder}"):
        what = file_kind(folder)
        if what not in (None, FOLDER):
            raise InvalidArgumentError(
                f"--save {folder}: it is {what}, not a folder; choose another name"
            )
        check_atomic_write(folder / f"{PARTIAL}{name_of_save(0)}")


def _check_apart(options: Options, names: tuple[str, ...]) -> None:
    """Raise InvalidArgumentError if a result would overwrite another one, or the text to learn."""
    text, json, why = _resolved(options.text), _resolved(options.json), ""
    for option, path, is_written, noun in (
        ("--report", options.report, names.__contains__, "name"),
        ("--save", options.save, is_taken, "folder"),
        ("--log", options.log, lambda _: False, "folder"),
    ):
        folder = _resolved(path)
        if folder is None:
            continue
        if text and text.parent == folder and is_written(text.name):
            raise InvalidArgumentError(
                f"{option} {path}: it would overwrite {options.text}, the text to learn; choose "
                f"another {noun}"
            )
        if json in (folder, *folder.parents):
            why = f"it is in the way of the folder of {option} {path}"
        if json and json.parent == folder and is_written(json.name):
            why = f"it is the name of a file of {option} {path}"
    if json and json == text:
        why = "it is the text to learn"
    if why:
        raise InvalidArgumentError(f"--json {options.json}: {why}; choose another name")


def _resolved(path: Path | None) -> Path | None:
    """Return ``path`` without links, so that two names of one file are recognised."""
    return path and Path(os.path.realpath(path))
