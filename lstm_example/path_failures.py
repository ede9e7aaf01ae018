"""One line for a path of the command line that cannot be read or written. Runs on Python 3.8."""

from __future__ import annotations

import contextlib
from typing import Iterator

from keras_recompute.errors import InvalidArgumentError


@contextlib.contextmanager
def refuse_path(
    said: str, what: str = "it cannot be written", kind: type[Exception] = InvalidArgumentError
) -> Iterator[None]:
    """Raise ``kind`` for an OSError in the block.

    ``said`` is the option with its value, and ``what`` is wrong with it.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{said}: {what} ({error.strerror})") from error
