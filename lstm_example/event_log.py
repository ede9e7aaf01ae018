"""``--log``: TensorBoard events of each update, and the program's memory as an image."""

from __future__ import annotations

import os
import struct
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ContextManager

from keras_recompute.atomic_files import check_atomic_write
from keras_recompute.errors import InvalidArgumentError, RecomputeError
from keras_recompute.liveness import Program

from .path_failures import refuse_path


def check_log(folder: Path) -> None:
    """Raise InvalidArgumentError if TensorBoard is missing or ``folder`` not writable."""
    if find_spec("tensorboard") is None:
        raise InvalidArgumentError(
            "--log: TensorBoard, which writes it, is not installed: pip install tensorboard"
        )
    with refuse_path(f"--log {folder}"):
        check_atomic_write(folder / "events")


class LogError(RecomputeError):
    """The folder of events cannot be written."""


class Log:
    """A folder of TensorBoard events; a resumed run adds to it."""

    def __init__(self, folder: Path) -> None:
        """Create the folder and its first file. Raises LogError if they cannot be written."""
        # By this name TensorBoard recognises it.
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        with self._failures_named():
            folder.mkdir(parents=True, exist_ok=True)
        self._write(file_version="brain.Event:2")

    def add(self, done: int, figures: dict[str, Any]) -> None:
        """Add the known figures after ``done`` updates. Raises LogError."""
        known = {name: value for name, value in figures.items() if value is not None}
        values = [{"tag": name, "simple_value": value} for name, value in known.items()]
        self._write(step=done, summary={"value": values})

    def add_program(self, done: int, program: Program) -> None:
        """Add the memory of ``program`` as a scalar and an image. Raises LogError."""
        from keras_recompute.report import liveness_figure

        with self._failures_named(), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "liveness.png"
            liveness_figure(program, path)
            png = path.read_bytes()
        width, height = struct.unpack(">II", png[16:24])  # of the PNG's header
        size = {"width": width, "height": height, "colorspace": 3}
        image = {"tag": "memory over program steps", "image": {**size, "encoded_image_string": png}}
        self._write(step=done, summary={"value": [image]})
        self.add(done, {"peak_bytes": program.peak_bytes})

    def _write(self, **contents: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        event = Event(wall_time=time.time(), **contents)
        # Closed after each update, so that a full disk is noticed here.
        with self._failures_named(), self._path.open("ab") as file:
            RecordWriter(file).write(event.SerializeToString())

    def _failures_named(self) -> ContextManager[None]:
        """Raise LogError for failures to write in the block."""
        return refuse_path(f"--log {self._path.parent}", kind=LogError)
