"""``--log``: figures of each update for TensorBoard, and the memory of the training program as an image."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from ..files import try_replacing
from ..liveness import Program


def check_log(folder: Path) -> None:
    """Raise InvalidArgumentError where ``folder`` cannot be written, or TensorBoard, which writes it, is not installed."""
    if find_spec("tensorboard") is None:
        raise InvalidArgumentError("--log: TensorBoard writes it, and is not installed: pip install tensorboard")
    try:
        try_replacing(folder / "events")
    except OSError as error:
        raise InvalidArgumentError(f"--log {folder}: it cannot be written ({error.strerror})") from None


class Log:
    """A folder of events; those of a run that goes on are added to what is there."""

    def __init__(self, tf: Any, folder: Path) -> None:
        self._tf, self._writer = tf, tf.summary.create_file_writer(str(folder))

    def add(self, done: int, figures: dict[str, Any]) -> None:
        """Add the figures after ``done`` updates; None is left out."""
        with self._writer.as_default(step=done):
            for name, value in figures.items():
                if value is not None:
                    self._tf.summary.scalar(name, value)
        self._writer.flush()

    def add_program(self, done: int, program: Program) -> None:
        """Add the memory of ``program`` over its steps, as a figure and as an image."""
        from ..report import liveness_figure

        with tempfile.TemporaryDirectory() as folder, self._writer.as_default(step=done):
            liveness_figure(program, Path(folder) / "liveness.png")
            image = self._tf.io.decode_png((Path(folder) / "liveness.png").read_bytes(), channels=3)
            self._tf.summary.image("memory over program steps", image[None])
            self._tf.summary.scalar("peak_bytes", program.peak_bytes)
        self._writer.flush()
