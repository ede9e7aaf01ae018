"""The user's code: its lines on the call stack, its errors in one line, and functions by name."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import runpy
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Tuple

from .errors import InvalidArgumentError, RecomputeWarning

# Of a traceback: file, line and function.
Frame = Tuple[str, int, str]

_OF_PYTHON = sysconfig.get_path("stdlib") + os.sep
# Of layers and functions whose code is known to do what Keras says of it.
KNOWN_PACKAGES = ("keras", "keras_recompute", "keras_hub")
_LIBRARIES = ("tensorflow", "keras", "jax", "torch")


@functools.lru_cache(maxsize=4096)  # asked for each frame of each operation
def is_of_user(filename: str) -> bool:
    """Whether a file is of neither Python, Keras, one of its backends nor this package."""
    # Packages are installed below Python's own folder, and may be the user's.
    if filename.startswith(_OF_PYTHON) and "site-packages" not in filename:
        return False
    folders = [Path(__file__).parent]
    for name in _LIBRARIES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            folders.append(Path(file).parent)
    libraries = [str(folder) + os.sep for folder in folders]
    return not filename.startswith((*libraries, "<frozen"))


def called_line(frames: Iterable[tuple[str, int]]) -> str | None:
    """Return ``"file:line"`` of the user's innermost line that a library called.

    A line that calls the libraries, as that of ``fit``, would be the same for all operations.

    Args:
        frames: Files and lines of a traceback, innermost first.
    """
    found = None
    for file, line in frames:
        if file.startswith("<frozen"):  # Python's own, as those of python -m
            continue
        if found is None:
            found = f"{file}:{line}" if is_of_user(file) else None
        elif not is_of_user(file):
            return found
    return None


@dataclass(frozen=True)
class Source:
    """A line of the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


def source_among(frames: Iterable[Frame]) -> Source | None:
    """Return the innermost line of the user's code among ``frames``, innermost frame first."""
    for file, line, function in frames:
        if is_of_user(file):
            return Source(os.path.basename(file), line, function or "<lambda>")
    return None


def call_named(module: str, function: str) -> Any:
    """Call a function of a module, or of a file whose name ends in ``.py``; return its result.

    Raises InvalidArgumentError where there is none of that name. Its own errors pass through.
    """
    if module.endswith(".py"):
        names: dict[str, Any] = runpy.run_path(module)
    else:
        sys.path.insert(0, "")  # as python3 -m does
        names = vars(importlib.import_module(module))
    found = names.get(function)
    if not callable(found):
        raise InvalidArgumentError(f"{module} has no function {function!r}")
    return found()


def error_line(error: BaseException) -> str:
    """Return the kind of an error and the beginning of what it says, as one line."""
    # Keras writes parts of its messages in bold.
    said = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())
    return f"{type(error).__name__}: {said:.300}"


def warn_user(message: str) -> None:
    """Warn with a RecomputeWarning at the line of the user's code that led here."""
    level = 1
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        if is_of_user(frame.f_code.co_filename):
            break
        level += 1
    warnings.warn(message, RecomputeWarning, stacklevel=level)
