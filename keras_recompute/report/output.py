"""The output of a command: a full disk, a closed stream or a reader that left must not end the work
that it reports.

Python raises where standard output cannot be written, in the middle of whatever printed, and once
more when the process ends. Here the first failure is noted, the rest is not printed, and the
command says so at its end.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, Callable, Iterator, TextIO, cast

from ..errors import ReportError
from .rows import printable


class OutputError(ReportError):
    """Standard output could not be written: what was to be printed is lost."""


class Output:
    """A text stream that is silent from its first failure on, which is ``error`` then; all else is
    the stream's.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.error = (
            OutputError("standard output is closed: nothing was printed")
            if stream is None
            else None
        )

    def write(self, text: str) -> int:
        """Write ``text``; a sign that the stream's encoding does not have becomes an escape."""
        if self._stream is not None:
            encoding = self._stream.encoding or "utf-8"
            self._carry_out(
                self._stream.write, text.encode(encoding, "backslashreplace").decode(encoding)
            )
        return len(text)

    def flush(self) -> None:
        """Hand over what was written so far."""
        if self._stream is not None:
            self._carry_out(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        """Be the stream in everything else, such as ``isatty``."""
        return getattr(self._stream, name)

    def _carry_out(self, act: Callable[..., object], *arguments: str) -> None:
        if self.error or self._stream is None:
            return
        try:
            act(*arguments)
        except OSError as error:
            self.error = OutputError(
                f"standard output cannot be written: {error.strerror or error}; the rest was not "
                "printed"
            )
            self.error.__cause__ = error
            _forget_buffered(self._stream)


@contextmanager
def watch_output() -> Iterator[Output]:
    """Have everything that is printed in the block go through an Output, up to the last buffered
    line.
    """
    _occupy_closed_descriptors()
    output = Output(sys.stdout)
    with redirect_stdout(cast("TextIO", output)):
        try:
            yield output
        finally:
            output.flush()


def print_error(text: str) -> None:
    """Print ``text`` as one line on the standard error stream; where that is closed or full, nobody
    can be told.
    """
    if sys.stderr is None:  # print would take standard output instead
        return
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        _forget_buffered(sys.stderr)


def _forget_buffered(stream: TextIO) -> None:
    """Lead ``stream`` nowhere: Python would try to write what it still holds when the process ends,
    and complain.
    """
    # A stream that is no file has nothing to lead
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _occupy_closed_descriptors() -> None:
    """Give the standard streams that are closed a descriptor that leads nowhere.

    The next file to be opened would get it otherwise, and what any library prints would stand in
    that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is this one
