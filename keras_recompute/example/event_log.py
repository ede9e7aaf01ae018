"""``--log``: figures of each update for TensorBoard, and the memory of the training program as an
image.
"""

from __future__ import annotations

import contextlib
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Iterator

from ..atomic_files import check_atomic_write
from ..errors import InvalidArgumentError, RecomputeError
from ..liveness import Program


def check_log(folder: Path) -> None:
    """Raise InvalidArgumentError where ``folder`` cannot be written, or TensorBoard, which writes
    it, is not installed.
    """
    if find_spec("tensorboard") is None:
        raise InvalidArgumentError(
            "--log: TensorBoard writes it, and is not installed: pip install tensorboard"
        )
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"--log {folder}: TensorFlow writes to names of UTF-8 alone; choose another one"
        ) from None
    try:
        check_atomic_write(folder / "events")
    except OSError as error:
        raise InvalidArgumentError(
            f"--log {folder}: it cannot be written ({error.strerror})"
        ) from None


class LogError(RecomputeError):
    """The folder of events cannot be written any more."""


class Log:
    """A folder of events; those of a run that goes on are added to what is there."""

    def __init__(self, tf: Any, folder: Path) -> None:
        """Make the folder and its first file. Raises LogError where they cannot be written."""
        self._tf, self._folder = tf, folder
        with self._failures_named():
            self._writer = tf.summary.create_file_writer(str(folder))

    def add(self, done: int, figures: dict[str, Any]) -> None:
        """Add the figures after ``done`` updates; None is left out. Raises LogError."""
        with self._failures_named():
            with self._writer.as_default(step=done):
                for name, value in figures.items():
                    if value is not None:
                        self._tf.summary.scalar(name, value)
            self._writer.flush()

    def add_program(self, done: int, program: Program) -> None:
        """Add the memory of ``program`` over its steps, as a figure and as an image. Raises
        LogError.
        """
        from ..report import liveness_figure

        with self._failures_named(), tempfile.TemporaryDirectory() as folder:
            liveness_figure(program, Path(folder) / "liveness.png")
            png = (Path(folder) / "liveness.png").read_bytes()
            with self._writer.as_default(step=done):
                image = self._tf.io.decode_png(png, channels=3)
                self._tf.summary.image("memory over program steps", image[None])
                self._tf.summary.scalar("peak_bytes", program.peak_bytes)
            self._writer.flush()

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        """Raise LogError for what cannot be written, which TensorFlow calls exhausted resources.

        Its message has lines such as "FILE; No space left on device".
        """
        try:
            yield
        except (OSError, self._tf.errors.OpError) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("; ")[2] or str(error)
            first = reason.strip().splitlines()[0]
            raise LogError(f"--log {self._folder}: it cannot be written ({first:.200})") from error
