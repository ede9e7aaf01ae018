"""For what a model is called: the steps of Keras's trainers, and what writes models for inference.

Read from the frames of the calls around, since neither Keras nor TensorFlow hands it on. Importing
this loads no Keras.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

_CONVERTED = "tf__"  # what AutoGraph puts in front of the names of functions
_STEPS = ("train_step", "test_step", "predict_step")
_WRITERS = (
    "keras.src.export",
    "tensorflow.python.saved_model.save",
    "tensorflow.lite.",
    "tf2onnx.",
)


def enclosing_step() -> str | None:
    """Return the name of the step of a Keras trainer that is running here, the innermost; or None."""
    for frame in _frames():
        name = frame.f_code.co_name.removeprefix(_CONVERTED)
        if name in _STEPS and hasattr(frame.f_locals.get("self"), "make_train_function"):
            return name
    return None


def is_being_exported() -> bool:
    """Whether Keras or TensorFlow traces something here to write it to a file, as a SavedModel is."""
    return any(frame.f_globals.get("__name__", "").startswith(_WRITERS) for frame in _frames())


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
