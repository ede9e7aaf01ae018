"""Standard output that may fail without ending the command that writes to it.

Python raises an error where standard output cannot be written, as on a full disk or a closed pipe:
in the middle of whatever prints, and again when the process ends. Here the first failure is
recorded, later output is dropped, and the command reports the failure at its end.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, Callable, Iterator, TextIO, cast

from ..errors import ReportError
from .rows import printable


class OutputError(ReportError):
    """Standard output could not be written, so output was lost."""


class Output:
    """A text stream that records its first failure in ``error`` and drops all later output."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.error = (
            OutputError("standard output is closed: nothing was printed")
            if stream is None
            else None
        )

    def write(self, text: str) -> int:
        """Write ``text``, escaping characters that the stream's encoding lacks."""
        if self._stream is not None:
            encoding = self._stream.encoding or "utf-8"
            self._carry_out(
                self._stream.write, text.encode(encoding, "backslashreplace").decode(encoding)
            )
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        if self._stream is not None:
            self._carry_out(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream, such as ``isatty``."""
        return getattr(self._stream, name)

    def _carry_out(self, act: Callable[..., object], *arguments: str) -> None:
        if self.error or self._stream is None:
            return
        try:
            act(*arguments)
        except OSError as error:
            self.error = OutputError(
                f"standard output cannot be written: {error.strerror or error}. The rest was not "
                "printed"
            )
            # The command treats a broken pipe differently from a full disk.
            self.error.__cause__ = error
            _forget_buffered(self._stream)


@contextmanager
def watch_output() -> Iterator[Output]:
    """Redirect standard output through an ``Output`` inside the block, and flush it at the end."""
    _occupy_closed_descriptors()
    output = Output(sys.stdout)
    with redirect_stdout(cast("TextIO", output)):
        try:
            yield output
        finally:
            output.flush()


def print_error(text: str) -> None:
    """Print ``text`` as one line on standard error; if that fails too, it is lost."""
    if sys.stderr is None:  # print would fall back to standard output
        return
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        _forget_buffered(sys.stderr)


def _forget_buffered(stream: TextIO) -> None:
    """Redirect ``stream`` to the null device, so that Python does not fail again at exit."""
    # A stream that is no file has no descriptor to redirect.
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _occupy_closed_descriptors() -> None:
    """Open the null device for each standard stream that is closed.

    Otherwise the next file to be opened would get its descriptor, and output of libraries would end
    up in that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is this one
