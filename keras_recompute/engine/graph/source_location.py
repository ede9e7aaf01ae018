"""The source location of a value in a traced function: the line of the user's code."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ...op_names import original_of
from ...user_code import is_of_user


@dataclass(frozen=True)
class Source:
    """A line of the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


def source_of(operation: tf.Operation) -> Source | None:
    """Return the innermost line of the user's code that made ``operation``, if there is one.

    Lines of TensorFlow, Keras and this package are skipped.
    """
    original = original_of(operation)
    if original is not operation:
        return source_of(original)
    return source_among(operation.traceback or ())


def source_among(frames: Iterable[Any]) -> Source | None:
    """Return the innermost line of the user's code in a traceback, outermost frame first."""
    for frame in reversed(list(frames)):
        if is_of_user(frame.filename):
            return Source(os.path.basename(frame.filename), frame.lineno, frame.name or "<lambda>")
    return None


def type_text(dtype: str, shape: tuple[int | None, ...] | None) -> str:
    """Return a type as ``float32[5,4]``; ``?`` for an unknown dimension, ``...`` for a shape."""
    sizes = "..." if shape is None else ",".join("?" if d is None else str(d) for d in shape)
    return f"{dtype}[{sizes}]"


def static_shape(tensor: tf.Tensor) -> tuple[int | None, ...] | None:
    """Return the shape of ``tensor`` as far as it is known before it runs."""
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
