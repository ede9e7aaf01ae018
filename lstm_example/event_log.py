"""``--log``: TensorBoard events of each update, and the program's memory as an image."""

from __future__ import annotations

import contextlib
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Iterator

from keras_recompute.atomic_files import check_atomic_write
from keras_recompute.errors import InvalidArgumentError, RecomputeError
from keras_recompute.liveness import Program


def check_log(folder: Path) -> None:
    """Raise InvalidArgumentError if TensorBoard is missing or ``folder`` not writable."""
    if find_spec("tensorboard") is None:
        raise InvalidArgumentError(
            "--log: TensorBoard, which writes it, is not installed: pip install tensorboard"
        )
    try:
        # Before TensorFlow is loaded, which would fail with a traceback.
        str(folder).encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"--log {folder}: TensorFlow can only write to names in UTF-8; choose another one"
        ) from None
    try:
        check_atomic_write(folder / "events")
    except OSError as error:
        raise InvalidArgumentError(
            f"--log {folder}: it cannot be written ({error.strerror})"
        ) from None


class LogError(RecomputeError):
    """The folder of events cannot be written."""


class Log:
    """A folder of TensorBoard events; a resumed run adds to it."""

    def __init__(self, tf: Any, folder: Path) -> None:
        """Create the folder and its first file. Raises LogError if they cannot be written."""
        self._tf, self._folder = tf, folder
        with self._failures_named():
            self._writer = tf.summary.create_file_writer(str(folder))

    def add(self, done: int, figures: dict[str, Any]) -> None:
        """Add the known figures after ``done`` updates. Raises LogError."""
        with self._failures_named():
            with self._writer.as_default(step=done):
                for name, value in figures.items():
                    if value is not None:
                        self._tf.summary.scalar(name, value)
            # Flushed for each update, so that a full disk is noticed here.
            self._writer.flush()

    def add_program(self, done: int, program: Program) -> None:
        """Add the memory of ``program`` as a scalar and an image. Raises LogError."""
        from keras_recompute.report import liveness_figure

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
        """Raise LogError for failures to write, which TensorFlow calls exhausted resources."""
        try:
            yield
        except (OSError, self._tf.errors.OpError) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("; ")[2] or str(error)
            # TensorFlow's message has lines such as "FILE; No space left on device".
            first = reason.strip().splitlines()[0]
            raise LogError(f"--log {self._folder}: it cannot be written ({first:.200})") from error
