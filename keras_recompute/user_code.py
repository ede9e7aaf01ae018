"""Which code on the Python call stack is the user's, and warnings that point at its line."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import warnings
from pathlib import Path

from .errors import RecomputeWarning

_LIBRARIES = ("tensorflow", "keras", "jax", "torch")


def is_of_user(filename: str) -> bool:
    """Whether a file belongs neither to Keras or one of its backends, nor to this package."""
    loaded = tuple(name for name in _LIBRARIES if name in sys.modules)
    return not filename.startswith((*_folders(loaded), "<frozen"))


@functools.lru_cache(maxsize=None)  # Python 3.8 has no functools.cache
def _folders(loaded: tuple[str, ...]) -> tuple[str, ...]:
    folders = [Path(__file__).parent]
    for name in loaded:
        file = sys.modules[name].__file__
        if file:
            folders.append(Path(file).parent)
    return tuple(str(folder) + os.sep for folder in folders)


def warn_user(message: str) -> None:
    """Warn with a RecomputeWarning at the line of the user's code that led here."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and not is_of_user(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RecomputeWarning, stacklevel=level)
