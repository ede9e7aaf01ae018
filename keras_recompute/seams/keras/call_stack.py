"""What the Python call stack says of a call: the trainer step it belongs to, or an export.

Neither Keras nor TensorFlow passes this on. Importing this module does not load Keras.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

_CONVERTED = "tf__"  # what AutoGraph puts in front of the names of functions
_STEPS = ("train_step", "test_step", "predict_step")
_WRITERS = (
    "keras.src.export",
    "tensorflow.python.saved_model.save",
    "tensorflow.lite.",
    "tf2onnx.",
)


def enclosing_step() -> str | None:
    """Return the name of the innermost step of a Keras trainer on the call stack, or None."""
    for frame in _frames():
        name = frame.f_code.co_name.removeprefix(_CONVERTED)
        if name in _STEPS and hasattr(frame.f_locals.get("self"), "make_train_function"):
            return name
    return None


def stateless_caller() -> Any:
    """Return the layer or model whose ``stateless_call`` is on the call stack, or None.

    It calls the layers inside as if nothing were around them.
    """
    for frame in _frames():
        if frame.f_code.co_name == "stateless_call":
            return frame.f_locals.get("self")
    return None


def is_being_exported() -> bool:
    """Whether Keras or TensorFlow is tracing for an export, such as a SavedModel."""
    return any(frame.f_globals.get("__name__", "").startswith(_WRITERS) for frame in _frames())


def _frames() -> Iterator[FrameType]:
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        yield frame
