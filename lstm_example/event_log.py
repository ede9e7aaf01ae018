"""``--log``: TensorBoard events of each update, and the program's memory as an image."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import time
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
        check_atomic_write(folder / "events")
    except OSError as error:
        raise InvalidArgumentError(
            f"--log {folder}: it cannot be written ({error.strerror})"
        ) from None


class LogError(RecomputeError):
    """The folder of events cannot be written."""


class Log:
    """A folder of TensorBoard events; a resumed run adds to it."""

    def __init__(self, folder: Path) -> None:
        """Create the folder and its first file. Raises LogError if they cannot be written."""
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._writer = (
            event_pb2.Event,
            summary_pb2.Summary,
            RecordWriter,
        )
        # By this name TensorBoard recognises it.
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        with self._failures_named():
            folder.mkdir(parents=True, exist_ok=True)
            self._write(file_version="brain.Event:2")

    def add(self, done: int, figures: dict[str, Any]) -> None:
        """Add the known figures after ``done`` updates. Raises LogError."""
        known = [(name, value) for name, value in figures.items() if value is not None]
        value_of = self._summary.Value
        self._add(done, [value_of(tag=name, simple_value=value) for name, value in known])

    def add_program(self, done: int, program: Program) -> None:
        """Add the memory of ``program`` as a scalar and an image. Raises LogError."""
        from keras_recompute.report import liveness_figure

        with self._failures_named(), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "liveness.png"
            liveness_figure(program, path)
            png = path.read_bytes()
        width, height = struct.unpack(">II", png[16:24])  # of the PNG's header
        image = self._summary.Image(
            width=width, height=height, colorspace=3, encoded_image_string=png
        )
        self._add(done, [self._summary.Value(tag="memory over program steps", image=image)])
        self.add(done, {"peak_bytes": program.peak_bytes})

    def _add(self, done: int, values: list[Any]) -> None:
        with self._failures_named():
            self._write(step=done, summary=self._summary(value=values))

    def _write(self, **contents: Any) -> None:
        event = self._event(wall_time=time.time(), **contents)
        # Closed after each update, so that a full disk is noticed here.
        with self._path.open("ab") as file:
            self._writer(file).write(event.SerializeToString())

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        """Raise LogError for failures to write."""
        try:
            yield
        except OSError as error:
            raise LogError(
                f"--log {self._path.parent}: it cannot be written ({error.strerror})"
            ) from error
